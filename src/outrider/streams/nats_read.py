"""Reads of a JetStream stream through a short-lived consumer. They notice when the stream was replaced or trimmed."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import AsyncGenerator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID

from outrider.errors import BrokerUnavailable
from outrider.streams.nats_connection import NatsConnection, NatsFailure, Replies, checked
from outrider.streams.nats_stream import API, MSG_ID, NOT_FOUND, NatsStream, sequence_of
from outrider.streams.stream import Page, StreamEntry, event_id_in

if TYPE_CHECKING:
    from nats.aio.msg import Msg
    from nats.aio.subscription import Subscription

PAGE = 500
"""Entries per page of a tail."""
UNUSED = 30
"""Seconds after which the server removes a consumer that nobody uses."""
SILENCE = 0.25
"""Seconds without a reply after which the reader checks that its consumer still exists."""
_TIME = re.compile(r"([^.Z+]{19})(?:\.(\d{1,9}))?(.*)")


class SourcePosition(NamedTuple):
    """`<sequence>@<created>.<stored>`, or the parts that are known."""

    sequence: int
    created: str = ""
    """When the stream was created: tells it from another one of the same name."""
    stored: str = ""
    """When the message was stored, in nanoseconds: tells it from another one with the same sequence."""

    @classmethod
    def parse(cls, position: str) -> SourcePosition:
        created, _, stored = position.partition("@")[2].partition(".")
        return cls(sequence_of(position), created, stored)

    def __str__(self) -> str:
        text = f"{self.sequence}@{self.created}" if self.created else str(self.sequence)
        return f"{text}.{self.stored}" if self.created and self.stored else text


class ConsumerGone(NatsFailure):
    """The server has removed the consumer."""


class NatsReader:
    def __init__(self, stream: NatsStream) -> None:
        self._stream = stream
        self._consumer: PullConsumer | None = None

    async def close(self) -> None:
        consumer, self._consumer = self._consumer, None
        if consumer is not None and self._stream.is_connected(consumer.connection):
            with contextlib.suppress(BrokerUnavailable):
                async with self._stream.connected(consumer.connection):
                    await consumer.remove()

    async def read(self, after: str, limit: int, wait: float) -> Page:
        """Sequences have no gaps: where there is one, a message was deleted or trimmed."""
        position, rewound, trimmed = SourcePosition.parse(after), False, False
        consumer, self._consumer = self._consumer, None
        async with self._stream.connected(seconds=self._stream.timeout + wait) as connection:
            if consumer is not None and not consumer.continues(connection, position):
                if consumer.connection is connection:
                    await consumer.remove()
                consumer = None
            if consumer is None:
                position, rewound, trimmed = await self._locate(connection, position)
                consumer = await PullConsumer.create(connection, self._stream.name, position)
            else:
                position = position._replace(created=consumer.created)
            try:
                messages = await consumer.fetch(limit)
                if not messages and wait > 0 and not rewound:
                    messages = await consumer.fetch(1, wait)
                    if messages and limit > 1:
                        messages += await consumer.fetch(limit - 1)
            except ConsumerGone:
                # The stream is gone too, or nobody had used the consumer for long. The next read creates another one.
                await consumer.unsubscribe()
                await self._stream.info(connection, create=False)
                return Page((), str(position), rewound, trimmed and not rewound)
        self._consumer = consumer
        entries = [self._entry(message, sequence, consumer.created) for sequence, message in messages]
        if messages and messages[-1][0] - position.sequence != len(messages):
            trimmed = True
        return Page(entries, entries[-1].position if entries else str(position), rewound, trimmed and not rewound)

    async def _locate(self, connection: NatsConnection, position: SourcePosition) -> tuple[SourcePosition, bool, bool]:
        """Where to read in the stream as it is now, whether that is its start again, and whether it was trimmed."""
        info = await self._stream.info(connection)
        created, state = "".join(filter(str.isdigit, info["created"])), info["state"]
        stored = await self._stored(connection, position.sequence) if position.sequence else ""
        rewound = bool(
            (position.created and position.created != created)
            or state["last_seq"] < position.sequence
            or (position.stored and stored and position.stored != stored)
        )
        found = SourcePosition(0, created) if rewound else SourcePosition(position.sequence, created, stored)
        if state["first_seq"] > found.sequence + 1:
            return SourcePosition(state["first_seq"] - 1, created), rewound, True
        return found, rewound, False

    async def _stored(self, connection: NatsConnection, sequence: int) -> str:
        """When a message was stored, in nanoseconds; empty if it is gone."""
        message = await self._stream.message(connection, sequence)
        return "" if message is None else nanoseconds(message["time"])

    async def tail(self, after: str) -> AsyncGenerator[Sequence[StreamEntry], None]:
        async with self._stream.connected() as connection:
            end, last = sequence_of(await self._stream.end(connection)), sequence_of(after)
            if last >= end:
                return
            consumer = await PullConsumer.create(connection, self._stream.name, SourcePosition(last))
        try:
            while last < end:
                async with self._stream.connected(connection, seconds=2 * self._stream.timeout):
                    messages = await consumer.fetch(PAGE) or await self._late_messages(consumer, end)
                entries = [self._entry(message, sequence) for sequence, message in messages if sequence <= end]
                if not entries:
                    return
                last = sequence_of(entries[-1].position)
                yield entries
        finally:
            if self._stream.is_connected(connection):
                with contextlib.suppress(BrokerUnavailable):
                    async with self._stream.connected(connection):
                        await consumer.remove()

    async def _late_messages(self, consumer: PullConsumer, end: int) -> list[tuple[int, Msg]]:
        """What a slow replica still has to deliver; nothing if the last message was deleted.

        A caller that took the messages so far for the whole tail would send events twice.
        """
        if await self._stream.message(consumer.connection, end) is None:
            return []
        found = await consumer.fetch(1, self._stream.timeout / 2)
        if not found:
            raise NatsFailure("the stream does not show its last message to readers yet")
        return found

    def _entry(self, message: Msg, sequence: int, created: str = "") -> StreamEntry:
        event_id: UUID | None = None
        with contextlib.suppress(ValueError):
            event_id = UUID((message.headers or {}).get(MSG_ID, ""))
        position = SourcePosition(sequence, created, message.reply.split(".")[-2])
        return StreamEntry(str(position), message.data, event_id or event_id_in(self._stream.codec, message.data))


class PullConsumer:
    """A consumer of this process alone. The server removes it when nobody uses it."""

    def __init__(self, connection: NatsConnection, stream: str, name: str, position: SourcePosition) -> None:
        self.connection = connection
        self.created = position.created
        self._stream, self._name = stream, name
        self._last, self._delivered = position.sequence, 0
        self._inbox = connection.client.new_inbox()
        self._subscription: Subscription | None = None
        self._replies: Replies | None = None
        self._received = 0

    @classmethod
    async def create(cls, connection: NatsConnection, stream: str, position: SourcePosition) -> PullConsumer:
        """It begins after the position."""
        config = {
            "deliver_policy": "by_start_sequence",
            "opt_start_seq": position.sequence + 1,
            "ack_policy": "none",
            "inactive_threshold": UNUSED * 10**9,
            "mem_storage": True,
            "num_replicas": 1,
        }
        request = {"stream_name": stream, "config": config}
        answer = checked(await connection.request(f"{API}.CONSUMER.CREATE.{stream}", request))
        consumer = cls(connection, stream, answer["name"], position)
        # It needs its own subscription, because delivered messages keep the subject under which they were published.
        consumer._subscription = await connection.client.subscribe(
            consumer._inbox, cb=consumer._receive, pending_msgs_limit=0, pending_bytes_limit=0
        )
        return consumer

    def continues(self, connection: NatsConnection, position: SourcePosition) -> bool:
        """Whether its next message is the one after the position."""
        return (
            self.connection is connection and self._last == position.sequence and position.created in ("", self.created)
        )

    async def fetch(self, limit: int, wait: float = 0) -> list[tuple[int, Msg]]:
        """The next messages with their sequences; waits up to `wait` seconds for them."""
        limits: dict[str, Any] = {"expires": int(wait * 1e9)} if wait else {"no_wait": True}
        subject = f"{API}.CONSUMER.MSG.NEXT.{self._stream}.{self._name}"
        with self.connection.expect_replies() as (replies, _):
            self._replies = replies
            await self.connection.client.publish(subject, json.dumps({"batch": limit, **limits}).encode(), self._inbox)
            if not await replies.wait(limit, wait + SILENCE):
                await self._check_exists()
                await replies.wait(limit)
        found = []
        for message in replies.found.values():
            if not message.reply:
                if (message.headers or {}).get("Status") in ("404", "408"):
                    break
                raise ConsumerGone(f"the server has ended the pull: {(message.headers or {}).get('Description', '')}")
            sequence, delivered = map(int, message.reply.split(".")[-4:-2])
            if delivered != self._delivered + 1:
                raise NatsFailure("a message was lost on the way")
            self._last, self._delivered = sequence, delivered
            found.append((sequence, message))
        return found

    async def _check_exists(self) -> None:
        """The server does not say when it removes a consumer."""
        answer = await self.connection.request(f"{API}.CONSUMER.INFO.{self._stream}.{self._name}")
        if answer.get("error", {}).get("code") == NOT_FOUND:
            raise ConsumerGone("the server has removed the consumer")

    async def _receive(self, message: Msg) -> None:
        """A message, or, without a reply subject, how the server ends the request early. Status 100 is a heartbeat."""
        if self._replies is not None and (message.reply or (message.headers or {}).get("Status") != "100"):
            self._received += 1
            self._replies.add(str(self._received), message)
            if not message.reply:
                self._replies.end()

    async def unsubscribe(self) -> None:
        if self._subscription is not None:
            await self._subscription.unsubscribe()

    async def remove(self) -> None:
        if not self.connection.is_closed:
            await self.unsubscribe()
            await self.connection.request(f"{API}.CONSUMER.DELETE.{self._stream}.{self._name}")


def nanoseconds(time: str) -> str:
    """Of a time in RFC 3339, in which zeros at the end of the fraction may be missing."""
    whole, fraction, zone = _TIME.fullmatch(time).groups("")  # type: ignore[union-attr]
    return f"{int(datetime.fromisoformat(whole + zone).timestamp())}{fraction.ljust(9, '0')}"
