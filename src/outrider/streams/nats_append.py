"""The conditional append to a JetStream stream: messages are pipelined, and the server checks each one.

Each message names the sequence at which it expects the stream to end, and from the second on also the event before it. So
nothing of ours gets in behind what another writer has sent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from urllib.parse import quote

from outrider.envelope import Envelope
from outrider.errors import BrokerUnavailable, Undecodable
from outrider.streams.nats_connection import NatsConnection, RawMessage, RawReply, parse_reply
from outrider.streams.nats_stream import MSG_ID, NatsStream, sequence_of
from outrider.streams.stream import Appended, AppendOutcome, Moved, Rejected

CHUNK_EVENTS = 1000
CHUNK_BYTES = 2**20
FIRST_CHUNK = 1
"""Events of the first chunk: if the stream does not end where it should, nothing else is sent."""
WRONG_LAST = (10071, 10070)
"""The stream does not end with the sequence, or with the event, that the message expects."""
OTHER_STREAM = 10060
TOO_LARGE = (10054, 10097)
"""Message or headers too large. All other errors are about the state of the stream, not about the message."""
PRINTABLE = "".join(map(chr, range(0x21, 0x7F))).replace('"', "").replace("%", "")
"""What CloudEvents leaves as it is in a header; everything else is percent-encoded."""


class NatsAppender:
    def __init__(self, stream: NatsStream, subject_of: Callable[[Envelope], str]) -> None:
        self._stream = stream
        self._subject_of = subject_of
        self._acknowledgement = b'{"stream":"' + stream.name.encode() + b'", "seq":%d}'
        """The server's reply to a message that was appended as expected."""

    async def append(self, events: Sequence[Envelope], after: str) -> AppendOutcome:
        """Chunk after chunk. Within a chunk nothing is awaited but the replies to all of it.

        A stream that was created again counts from 1 again, so it must also hold the event that `after` names. For the time
        of its duplicate window the server leaves out an event whose id it knows. The rest of the chunk then does not fit
        and is sent again.
        """
        before = sequence_of(after)
        remaining = list(range(len(events)))
        """Indices of the events that are not duplicates."""
        sent = 0
        async with self._stream.connected() as connection:
            if not await self._stream.may_hold(connection, after):
                return Moved(await self._stream.end(connection))
        while sent < len(remaining):
            size = CHUNK_EVENTS if sent else FIRST_CHUNK
            chunk = _NatsChunk(
                self._stream,
                self._subject_of,
                events=[events[index] for index in remaining[sent : sent + size]],
                previous=events[remaining[sent - 1]] if sent else None,
                after=before + sent,
            )
            async with self._stream.connected() as connection:
                if not chunk.subjects_are_known():
                    await self._stream.info(connection)
                replies = await connection.publish(chunk.messages(connection.client.max_payload))
                repeated = {n for n, reply in enumerate(replies) if _is_duplicate(reply, before)}
                for reply in replies[: min(repeated, default=None)]:
                    if reply != (None, self._acknowledgement % (before + sent + 1)):
                        index = remaining[sent]
                        outcome = await self._outcome(connection, reply, events[index], index, before + sent)
                        if outcome is not None:
                            return outcome
                    sent += 1
            if repeated:
                start = sent - min(repeated)
                remaining = [index for n, index in enumerate(remaining) if n - start not in repeated]
            elif chunk.not_accepted is not None:
                self._stream.fail_not_accepted(chunk.not_accepted)
            elif chunk.refusal is not None:
                return Rejected(remaining[sent], str(before + sent), *chunk.refusal)
        return Appended(str(before + sent), frozenset(range(len(events))).difference(remaining))

    async def _outcome(
        self, connection: NatsConnection, reply: RawReply, envelope: Envelope, index: int, last: int
    ) -> AppendOutcome | None:
        """What a reply means; None if the event is in the stream, directly after the sequence `last`."""
        answer = parse_reply(reply)
        if "error" not in answer:
            if answer.get("seq") == last + 1 and not answer.get("duplicate"):
                return None
            return Moved(await self._stream.end(connection))
        code, text = answer["error"].get("err_code", 0), str(answer["error"].get("description", ""))
        if code in WRONG_LAST:
            return Moved(await self._stream.end(connection))
        if code in TOO_LARGE:
            return Rejected(index, str(last), str(code), text, lasting=True)
        subject = self._subject_of(envelope)
        await self._stream.info(connection)
        if code == OTHER_STREAM or subject not in self._stream.accepted:
            self._stream.fail_not_accepted(subject)
        raise BrokerUnavailable(f"{self._stream.address} does not accept anything into {self._stream.name} now: {text}")


@dataclass(slots=True)
class _NatsChunk:
    """Events as messages. They are encoded while the ones before them are on their way."""

    stream: NatsStream
    subject_of: Callable[[Envelope], str]
    events: Sequence[Envelope]
    previous: Envelope | None
    """The event before the first one; None if this append has sent none yet."""
    after: int
    """The sequence after which the first one follows."""
    refusal: tuple[str, str, bool] | None = None
    """Code, message and whether it lasts, if the event after the last message cannot be sent."""
    not_accepted: str | None = None
    """Subject of the event after the last message, if the stream does not accept it."""

    def subjects_are_known(self) -> bool:
        try:
            return all(self.subject_of(envelope) in self.stream.accepted for envelope in self.events)
        except Exception:  # of subject_for: `messages` finds out which event it was
            return True

    def messages(self, max_payload: int) -> Iterator[RawMessage]:
        """`max_payload`: bytes of a message with its headers."""
        codec, size, previous = self.stream.codec, 0, self.previous
        for sequence, envelope in enumerate(self.events, self.after):
            try:
                subject, data = self.subject_of(envelope), codec.encode(envelope, "")
            except Exception as error:  # codec and subject_for may be a user's
                self.refusal = ("unencodable", str(error) or type(error).__name__, isinstance(error, Undecodable))
                return
            if not _is_subject(subject):
                rule = "it needs words separated by dots, without spaces, * and >"
                self.refusal = ("subject", f"{subject!r:.200} is not a subject: {rule}", False)
                return
            if subject not in self.stream.accepted:
                self.not_accepted = subject
                return
            headers = self._headers(envelope, previous, sequence)
            length = len(headers) + len(data)
            if length > max_payload:
                text = f"the message has {length:,} bytes, max_payload of the server is {max_payload:,}"
                self.refusal = ("too_large", text, True)
                return
            size += length
            if size > CHUNK_BYTES and sequence > self.after:
                return
            yield subject, headers, data
            previous = envelope

    def _headers(self, envelope: Envelope, previous: Envelope | None, last: int) -> bytes:
        event_id, optional = str(envelope.id), ""
        if previous is not None:
            optional = f"Nats-Expected-Last-Msg-Id: {previous.id}\r\n"
        if envelope.occurred_at is not None:
            optional += f"ce-time: {envelope.occurred_at.isoformat()}\r\n"
        for name, value in (envelope.trace_context or {}).items():
            if name in ("traceparent", "tracestate"):
                optional += f"{name}: {_printable(value)}\r\n"
        shared = _shared_headers(self.stream.name, self.stream.codec.content_type, envelope.event_type, envelope.source)
        return (
            f"NATS/1.0\r\n{MSG_ID}: {event_id}\r\nNats-Expected-Last-Sequence: {last}\r\nce-id: {event_id}\r\n"
            f"{optional}{shared}\r\n"
        ).encode()


@lru_cache(1024)
def _shared_headers(stream: str, content_type: str, event_type: str, source: str) -> str:
    """The headers that many messages have in common."""
    return (
        f"Nats-Expected-Stream: {stream}\r\nContent-Type: {content_type}\r\nce-specversion: 1.0\r\n"
        f"ce-type: {_printable(event_type)}\r\nce-source: {_printable(source)}\r\n"
    )


def _printable(text: str) -> str:
    return quote(text, safe=PRINTABLE)


def _is_subject(subject: object) -> bool:
    return isinstance(subject, str) and all(subject.split(".")) and not set(subject) & set("*> \t\r\n")


def _is_duplicate(reply: RawReply, before: int) -> bool:
    """Whether the server left the message out because its id is in the stream, at the sequence `before` or earlier."""
    if b'"duplicate"' not in reply[1]:
        return False
    answer = parse_reply(reply)
    return bool(answer.get("duplicate")) and answer["seq"] <= before
