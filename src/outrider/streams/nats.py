"""NATS JetStream, as the sink of a relay and the source of an inbox."""

from __future__ import annotations

import copy
from collections.abc import AsyncGenerator, Callable, Sequence
from importlib.util import find_spec
from typing import Self

from outrider.envelope import Envelope
from outrider.errors import ConfigError
from outrider.streams.codecs import EnvelopeCodec
from outrider.streams.durability import jetstream_weaknesses
from outrider.streams.nats_append import PRINTABLE, NatsAppender
from outrider.streams.nats_read import NatsReader
from outrider.streams.nats_stream import NatsStream, sequence_of
from outrider.streams.stream import AppendOutcome, Codec, Page, StreamEntry, Weakness
from outrider.streams.url import NATS, Address


class JetStream:
    """Sink and source: one stream, which must exist (`create=True` creates it, with the subjects `<stream>.>`).

    The subject of an event is `<stream>.<event type>` unless `subject_for` returns another one.
    """

    start = "0"

    def __init__(
        self,
        url: str,
        *,
        stream: str,
        subject_for: Callable[[Envelope], str] | None = None,
        codec: Codec | None = None,
        timeout: float = 5,
        create: bool = False,
    ) -> None:
        """`timeout`: seconds to wait for an answer. The URL may name several hosts of one cluster, separated by commas.

        With TLS, the parameters ssl_ca_certs, ssl_certfile and ssl_keyfile of the URL name files.
        """
        address = Address.of(url)
        if address.scheme not in NATS:
            raise ConfigError(f"{address} is no NATS: the URL must begin with nats:// or tls://")
        if find_spec("nats") is None:
            raise ConfigError("NATS needs its client: install outrider[nats]")
        if not stream or not set(stream) <= set(PRINTABLE) - set("./\\*>"):
            raise ConfigError(
                f'{stream!r} cannot be the name of a JetStream stream: use ASCII without spaces and . / \\ * > " %'
            )
        self.codec: Codec = codec or EnvelopeCodec()
        self._subject_for = subject_for
        self._use(NatsStream(address, stream, self.codec, timeout, create=create))

    def _use(self, stream: NatsStream) -> None:
        self._stream = stream
        self._appender = NatsAppender(stream, self.subject_of)
        self._reader = NatsReader(stream)

    def copy(self) -> Self:
        """The same stream, with a connection of its own."""
        other = copy.copy(self)
        other._use(self._stream.copy())
        return other

    def __repr__(self) -> str:
        return f"<JetStream {self._stream.address} {self.stream}>"

    @property
    def stream(self) -> str:
        return self._stream.name

    def stream_of(self, envelope: Envelope) -> str:  # noqa: ARG002
        return self.stream

    def subject_of(self, envelope: Envelope) -> str:
        return f"{self.stream}.{envelope.event_type}" if self._subject_for is None else self._subject_for(envelope)

    def sort_key(self, position: str) -> tuple[int, ...]:
        return (sequence_of(position),)

    async def open(self) -> None:
        async with self._stream.connected() as connection:
            await self._stream.info(connection)

    async def close(self) -> None:
        await self._reader.close()
        await self._stream.disconnect()

    async def append(self, stream: str, events: Sequence[Envelope], after: str) -> AppendOutcome:  # noqa: ARG002
        return await self._appender.append(events, after)

    async def end(self, stream: str) -> str:  # noqa: ARG002
        async with self._stream.connected() as connection:
            return await self._stream.end(connection)

    async def holds(self, stream: str, position: str) -> bool:  # noqa: ARG002
        async with self._stream.connected() as connection:
            end = sequence_of(await self._stream.end(connection))
            return sequence_of(position) <= end and await self._stream.may_hold(connection, position)

    def tail(self, stream: str, after: str) -> AsyncGenerator[Sequence[StreamEntry], None]:  # noqa: ARG002
        return self._reader.tail(after)

    async def complete(self, stream: str, after: str) -> bool:  # noqa: ARG002
        """The server tells only the number of deleted messages: with one, wherever it was, nothing is certain."""
        async with self._stream.connected() as connection:
            state = (await self._stream.info(connection))["state"]
        return bool(state["first_seq"] <= sequence_of(after) + 1 and not state.get("num_deleted"))

    async def read(self, after: str, limit: int, wait: float) -> Page:
        return await self._reader.read(after, limit, wait)

    async def weaknesses(self) -> list[Weakness]:
        """Does not create the stream."""
        async with self._stream.connected() as connection:
            if self._stream.create and not await self._stream.exists(connection):
                missing = f"{self._stream.address} has no stream {self.stream} yet"
                return [Weakness(missing, "nothing to do: the relay creates it when it starts", grave=False)]
            info = await self._stream.info(connection, create=False)
            version = connection.client.connected_server_version
        return jetstream_weaknesses(self._stream.address, info["config"], version)
