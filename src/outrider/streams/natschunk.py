"""Events as messages of JetStream: their subjects, and headers that say what the stream must end with."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Protocol
from urllib.parse import quote

from outrider.envelope import Envelope
from outrider.streams.natswire import Message, Wire, is_subject
from outrider.streams.stream import Codec

CHUNK_BYTES = 2**20
PLAIN = "".join(map(chr, range(0x21, 0x7F))).replace('"', "").replace("%", "")


class Subjects(Protocol):
    """Of a sink."""

    codec: Codec

    @property
    def stream(self) -> str: ...

    def subject_of(self, envelope: Envelope) -> str: ...


class Chunk:
    """A part of the events as messages. They are made while those before them are on their way."""

    refusal: tuple[str, str] | None = None
    """Why the message after the last one cannot be sent."""
    foreign: str | None = None
    """The subject of the message after the last one, if the stream does not take it."""

    def __init__(
        self, sink: Subjects, wire: Wire, events: Sequence[Envelope], sent: int, first: int, most: int
    ) -> None:
        """At most so many, from the first that was not sent; `first` is where the stream ended before all of them."""
        self._sink, self._wire, self._events = sink, wire, events
        self._sent, self._first = sent, first
        self._until = min(sent + most, len(events))

    def known(self) -> bool:
        """Whether the stream takes all their subjects, as far as is known here."""
        with contextlib.suppress(Exception):  # of subject_for: messages() says which event it was
            return all(
                self._wire.takes(self._sink.subject_of(envelope)) for envelope in self._events[self._sent : self._until]
            )
        return True

    def messages(self) -> Iterator[Message]:
        codec, subject_of, takes, most = self._sink.codec, self._sink.subject_of, self._wire.takes, self._wire.most
        size = 0
        for index in range(self._sent, self._until):
            envelope = self._events[index]
            try:
                subject, data = subject_of(envelope), codec.encode(envelope, "")
            except Exception as error:  # codec and subject_for may be anybody's
                self.refusal = ("unencodable", str(error) or type(error).__name__)
                return
            if not is_subject(subject):
                self.refusal = (
                    "subject",
                    f"{subject!r:.200} is no subject: it has words between dots, no spaces, * or >",
                )
                return
            if not takes(subject):
                self.foreign = subject
                return
            headers = self._headers(envelope, index)
            whole = len(headers) + len(data)
            if whole > most:
                self.refusal = ("too_large", f"the message has {whole:,} bytes, max_payload of the server is {most:,}")
                return
            size += whole
            if size > CHUNK_BYTES and index > self._sent:
                return
            yield subject, headers, data

    def _headers(self, envelope: Envelope, index: int) -> bytes:
        own, traced = str(envelope.id), ""
        if index:
            traced = f"Nats-Expected-Last-Msg-Id: {self._events[index - 1].id}\r\n"
        if envelope.occurred_at is not None:
            traced += f"ce-time: {envelope.occurred_at.isoformat()}\r\n"
        for name, value in (envelope.trace_context or {}).items():
            if name in ("traceparent", "tracestate"):
                traced += f"{name}: {quote(value, safe=PLAIN)}\r\n"
        return (
            f"NATS/1.0\r\nNats-Msg-Id: {own}\r\nNats-Expected-Last-Sequence: {self._first + index}\r\nce-id: {own}\r\n"
            f"{traced}{_common(self._sink.stream, self._sink.codec.content_type, envelope.event_type, envelope.source)}\r\n"
        ).encode()


@lru_cache(1024)
def _common(stream: str, content_type: str, event_type: str, source: str) -> str:
    """The headers that many messages share."""
    return (
        f"Nats-Expected-Stream: {stream}\r\nContent-Type: {content_type}\r\nce-specversion: 1.0\r\n"
        f"ce-type: {_printable(event_type)}\r\nce-source: {_printable(source)}\r\n"
    )


def _printable(text: str) -> str:
    """As CloudEvents has it in headers: what is not plain ASCII is percent-encoded."""
    return quote(text, safe=PLAIN)
