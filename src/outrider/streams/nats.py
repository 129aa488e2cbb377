"""NATS JetStream: appends that are pipelined and fenced message by message, and reads through a short-lived consumer.

Each message names the sequence that it expects the stream to end with, and from the second on also the event before it:
whoever else writes, nothing of ours gets in behind what is not ours. A connection that failed is never used again: what
it still held could arrive later.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from base64 import b64decode
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from datetime import datetime
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, NoReturn
from uuid import UUID

from outrider.envelope import Envelope
from outrider.errors import BrokerUnavailable, ConfigError, StreamMissing
from outrider.streams.codecs import EnvelopeCodec
from outrider.streams.natschunk import PLAIN, Chunk
from outrider.streams.natswire import (
    API,
    NOT_FOUND,
    Closed,
    ConsumerGone,
    Pull,
    Raw,
    Refused,
    Wire,
    answer_of,
    checked,
    is_nats,
)
from outrider.streams.stream import (
    Appended,
    Codec,
    Entry,
    Moved,
    Outcome,
    Page,
    Rejected,
    Weakness,
    bare,
    id_in,
    is_named,
)
from outrider.streams.url import NATS, Address

if TYPE_CHECKING:
    from nats.aio.msg import Msg

START = "0"
MSG_ID = "Nats-Msg-Id"
PAGE = 500
CHUNK_EVENTS = 1000
REPLICAS = 3
LEAD = 1
"""Messages that are sent first: if the stream does not end where it should, nothing else is sent."""
STREAM_NOT_FOUND = 10059
WRONG_LAST = (10071, 10070)
"""The stream does not end with the sequence, or the event, that the message expects."""
OTHER_STREAM = 10060
REFUSALS = (10054, 10097)
"""Message or headers too large. All other errors are about the stream's state: nothing is wrong with the message then."""
_TIME = re.compile(r"([^.Z+]{19})(?:\.(\d{1,9}))?(.*)")


class JetStream:
    """Sink and source: one stream, which has to be there (`create=True` makes it, with the subjects `<stream>.>`).

    The subject of an event is `<stream>.<event type>` unless `subject_for` says otherwise.
    """

    start = START

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
        """`timeout`: seconds for one answer. Hosts of one cluster are separated by commas.

        With TLS, the parameters ssl_ca_certs, ssl_certfile and ssl_keyfile of the URL name files.
        """
        self._address = Address.of(url)
        if self._address.scheme not in NATS:
            raise ConfigError(f"{self._address} is no NATS: its URL begins with {' or '.join(NATS)}://")
        if find_spec("nats") is None:
            raise ConfigError("NATS needs its client: install outrider[nats]")
        if not stream or not set(stream) <= set(PLAIN) - set("./\\*>"):
            raise ConfigError(
                f"{stream!r} cannot be the name of a JetStream stream: ASCII without spaces . / \\ * and >"
            )
        self.codec: Codec = codec or EnvelopeCodec()
        self._stream, self._subject_for = stream, subject_for
        self._timeout, self._create = timeout, create
        self._acknowledged = b'{"stream":"' + stream.replace("\\", "").encode().replace(b"%", b"%%") + b'", "seq":%d}'
        """What the server says of a message that is where it belongs."""
        self._opening = asyncio.Lock()
        self._wire: Wire | None = None
        self._pull: Pull | None = None

    def __repr__(self) -> str:
        return f"<JetStream {self._address} {self._stream}>"

    @property
    def stream(self) -> str:
        return self._stream

    def stream_of(self, envelope: Envelope) -> str:  # noqa: ARG002
        return self._stream

    def subject_of(self, envelope: Envelope) -> str:
        return f"{self._stream}.{envelope.event_type}" if self._subject_for is None else self._subject_for(envelope)

    def place(self, position: str) -> tuple[int, ...]:
        return (_number(position),)

    async def open(self) -> None:
        async with self._speaking() as wire:
            await self._info(wire)

    async def close(self) -> None:
        if self._pull is not None and self._wire is not None and not self._wire.client.is_closed:
            with contextlib.suppress(BrokerUnavailable):
                async with self._speaking():
                    await self._pull.remove()
        self._pull = None
        await self._hang_up()

    async def end(self, stream: str) -> str:  # noqa: ARG002
        async with self._speaking() as wire:
            return str((await self._info(wire))["state"]["last_seq"])

    async def weaknesses(self) -> list[Weakness]:
        """Makes no stream, also where a relay would."""
        makes, self._create = self._create, False
        try:
            async with self._speaking() as wire:
                answer = await wire.ask(f"{API}.STREAM.INFO.{self._stream}")
                if makes and answer.get("error", {}).get("err_code") == STREAM_NOT_FOUND:
                    missing = f"{self._address} has no stream {self._stream} yet"
                    return [Weakness(missing, "nothing: the relay makes it when it starts", grave=False)]
                config = (await self._info(wire))["config"]
                version = wire.client.connected_server_version
        finally:
            self._create = makes
            if makes:
                await self._hang_up()
        found = []
        if config.get("storage") != "file":
            found.append(
                Weakness(
                    f"the stream {self._stream} at {self._address} is kept in memory: a restart loses it",
                    "make it anew with storage: file; a relay sends again what is missing",
                )
            )
        if (replicas := config.get("num_replicas", 1)) < REPLICAS:
            copies = "one copy" if replicas == 1 else f"{replicas} copies"
            found.append(
                Weakness(
                    f"the stream {self._stream} at {self._address} has {copies}, and the server (NATS {version}) writes it "
                    "to its disk every two minutes unless sync_interval says otherwise: a power cut may lose that much",
                    "three replicas, or sync_interval: always; a relay sends again what is missing",
                    grave=False,
                )
            )
        return found

    async def complete(self, stream: str, after: str) -> bool:  # noqa: ARG002
        """Of single deletions the stream tells only how many there are: with one, wherever it is, nothing is certain."""
        async with self._speaking() as wire:
            state = (await self._info(wire))["state"]
        return bool(state["first_seq"] <= _number(after) + 1 and not state.get("num_deleted"))

    async def holds(self, stream: str, position: str) -> bool:  # noqa: ARG002
        async with self._speaking() as wire:
            info = await self._info(wire)
            return _number(position) <= info["state"]["last_seq"] and await self._may_be(wire, position)

    async def _may_be(self, wire: Wire, position: str) -> bool:
        """Whether the event that the position names is there. Sequences have no gaps: one without a message had one."""
        if position == bare(position):
            return True
        stored = await self._stored(wire, _number(position))
        return stored is None or is_named(position, self._id_of(stored))

    def _id_of(self, stored: dict[str, Any]) -> UUID | None:
        for line in b64decode(stored.get("hdrs", "")).decode(errors="replace").split("\r\n"):
            header, _, value = line.partition(":")
            if header == MSG_ID:
                with contextlib.suppress(ValueError):
                    return UUID(value.strip())
        return id_in(self.codec, b64decode(stored.get("data", "")))

    async def append(self, stream: str, events: Sequence[Envelope], after: str) -> Outcome:  # noqa: ARG002
        """Chunk by chunk, the first one short; within one, nothing is awaited but the answers to all of it.

        A stream that was made anew counts from 1 again: it must end with the event that `after` names, not only there.
        What was published twice is kept out by the server, for the time of its duplicate window; the rest of the chunk then
        does not fit, and is sent again.
        """
        first, sent, repeated = _number(after), 0, frozenset[int]()
        left = list(range(len(events)))
        async with self._speaking() as wire:
            if not await self._may_be(wire, after):
                return Moved(await self._end(wire))
        while sent < len(left):
            async with self._speaking() as wire:
                chunk = Chunk(self, wire, [events[n] for n in left], sent, first, CHUNK_EVENTS if sent else LEAD)
                if not chunk.known():
                    await self._info(wire)
                answers = await wire.publish(chunk.messages())
                known = [n for n, answer in enumerate(answers, sent) if _repeats(answer, first)]
                for n, answer in enumerate(answers[: known[0] - sent] if known else answers, sent):
                    if answer == (None, self._acknowledged % (first + n + 1)):
                        continue
                    outcome = await self._judge(wire, answer, events[left[n]], left[n], first + n)
                    if outcome is not None:
                        return outcome
                if known:
                    repeated |= {left[n] for n in known}
                    left = [n for n in left if n not in repeated]
                    sent = known[0]
                    continue
                sent += len(answers)
                if chunk.foreign is not None:
                    self._not_taken(chunk.foreign)
                if chunk.refusal is not None:
                    return Rejected(left[sent], str(first + sent), *chunk.refusal)
        return Appended(str(first + sent), repeated)

    async def _judge(self, wire: Wire, raw: Raw, envelope: Envelope, index: int, last: int) -> Outcome | None:
        """What one answer means; None = it is in the stream, where it belongs, after `last`."""
        answer = answer_of(raw)
        if "error" not in answer:
            if answer.get("seq") == last + 1 and not answer.get("duplicate"):
                return None
            return Moved(await self._end(wire))
        code, text = answer["error"].get("err_code", 0), str(answer["error"].get("description", ""))
        if code in WRONG_LAST:
            return Moved(await self._end(wire))
        if code in REFUSALS:
            return Rejected(index, str(last), str(code), text)
        subject = self.subject_of(envelope)
        await self._info(wire)
        if code == OTHER_STREAM or not wire.takes(subject):
            self._not_taken(subject)
        raise BrokerUnavailable(f"{self._address} does not take anything into {self._stream} now: {text}")

    def _not_taken(self, subject: str) -> NoReturn:
        """Nothing is wrong with the event: the same one could be sent when the stream is configured as before."""
        raise StreamMissing(
            f"the stream {self._stream} of {self._address} does not take the subject {subject!r}: add it "
            f"(nats stream edit {self._stream} --subjects ...), or let subject_for= name another one"
        )

    async def _end(self, wire: Wire) -> str:
        return str((await self._info(wire))["state"]["last_seq"])

    async def tail(self, stream: str, after: str) -> AsyncGenerator[Sequence[Entry], None]:
        end, position = _number(await self.end(stream)), _number(after)
        if position >= end:
            return
        async with self._speaking() as wire:
            pull = await Pull.begin(wire, self._stream, position + 1)
        try:
            while position < end:
                async with self._speaking(wire, seconds=2 * self._timeout):
                    messages = await pull.fetch(PAGE) or await self._rest(wire, pull, end)
                entries = [self._entry(number, message) for number, message in messages if number <= end]
                if not entries:
                    return
                position = _number(entries[-1].position)
                yield entries
        finally:
            if self._wire is wire:
                with contextlib.suppress(BrokerUnavailable):
                    async with self._speaking(wire):
                        await pull.remove()

    async def _rest(self, wire: Wire, pull: Pull, end: int) -> list[tuple[int, Msg]]:
        """Of a tail that stops before its end: nothing if the end was deleted, else what a slow replica still owes.

        Who took it for the whole tail would send events again.
        """
        if await self._stored(wire, end) is None:
            return []
        found = await pull.fetch(1, self._timeout / 2)
        if not found:
            raise Closed("the stream does not show its last message to readers yet")
        return found

    async def read(self, after: str, limit: int, wait: float) -> Page:
        """Sequences have no gaps: where there is one, something was deleted, or trimmed."""
        last, rewound, trimmed = _number(after), False, False
        incarnation, _, moment = after.partition("@")[2].partition(".")
        pull, self._pull = self._pull, None
        async with self._speaking(seconds=self._timeout + wait) as wire:
            if pull is not None and not pull.follows(wire, last, incarnation):
                await pull.remove()
                pull = None
            if pull is None:
                info = await self._info(wire)
                created, state = _incarnation(info), info["state"]
                found = await self._moment(wire, last) if last else ""
                if (
                    (incarnation and incarnation != created)
                    or state["last_seq"] < last
                    or (moment and found and moment != found)
                ):
                    last, found, rewound = 0, "", True
                moment = found
                if state["first_seq"] > last + 1:
                    last, moment, trimmed = state["first_seq"] - 1, "", True
                pull = await Pull.begin(wire, self._stream, last + 1, created)
            here = _position(last, pull.incarnation, moment)
            try:
                messages = await pull.fetch(limit)
                if not messages and wait > 0 and not rewound:
                    messages = await pull.fetch(1, wait)
                    if messages and limit > 1:
                        messages += await pull.fetch(limit - 1)
            except ConsumerGone:
                # With its stream, or because nobody had asked for long: the next reading looks.
                await pull.forget()
                await self._info(wire)
                return Page((), here, rewound, trimmed and not rewound)
        self._pull = pull
        entries = [self._entry(number, message, pull.incarnation) for number, message in messages]
        if messages and messages[-1][0] - last != len(messages):
            trimmed = True
        return Page(entries, entries[-1].position if entries else here, rewound, trimmed and not rewound)

    def _entry(self, number: int, message: Msg, incarnation: str = "") -> Entry:
        known: UUID | None = None
        with contextlib.suppress(ValueError):
            known = UUID((message.headers or {}).get(MSG_ID, ""))
        position = _position(number, incarnation, message.reply.split(".")[-2])
        return Entry(position, message.data, known or id_in(self.codec, message.data))

    async def _moment(self, wire: Wire, number: int) -> str:
        """When a message was stored, in nanoseconds: another one under its number has another. Empty when it is gone."""
        stored = await self._stored(wire, number)
        return "" if stored is None else _nanoseconds(stored["time"])

    async def _stored(self, wire: Wire, number: int) -> dict[str, Any] | None:
        """The message under a number, as the server tells of it; None when it is gone, or was never there."""
        answer = await wire.ask(f"{API}.STREAM.MSG.GET.{self._stream}", {"seq": number})
        if answer.get("error", {}).get("code") == NOT_FOUND:
            return None
        message: dict[str, Any] = checked(answer)["message"]
        return message

    async def _info(self, wire: Wire) -> dict[str, Any]:
        """The stream's configuration and state. StreamMissing unless it is there and one relay's alone can be."""
        answer = await wire.ask(f"{API}.STREAM.INFO.{self._stream}")
        if answer.get("error", {}).get("err_code") == STREAM_NOT_FOUND:
            raise StreamMissing(
                f"{self._address} has no stream {self._stream}: make it (nats stream add {self._stream} --subjects "
                f"'{self._stream}.>' --storage file), or let JetStream(..., create=True) make it"
            )
        info = checked(answer)
        config = info["config"]
        wrong = (
            "is a mirror" if config.get("mirror")
            else "takes in other streams (sources)" if config.get("sources")
            else "is sealed" if config.get("sealed")
            else "does not acknowledge (no_ack)" if config.get("no_ack")
            else f"has the retention {config['retention']}, not limits" if config.get("retention", "limits") != "limits"
            else ""
        )  # fmt: skip
        if wrong:
            raise StreamMissing(
                f"the stream {self._stream} of {self._address} {wrong}, so it cannot be one relay's alone, in order: "
                "use another stream, or change its configuration (nats stream edit)"
            )
        wire.know(config.get("subjects") or ())
        return info

    async def _make(self, wire: Wire) -> None:
        config = {"name": self._stream, "subjects": [f"{self._stream}.>"], "retention": "limits", "storage": "file"}
        limits = {"max_consumers": -1, "max_msgs": -1, "max_bytes": -1, "max_age": 0, "max_msg_size": -1}
        answer = await wire.ask(f"{API}.STREAM.INFO.{self._stream}")
        if answer.get("error", {}).get("err_code") == STREAM_NOT_FOUND:
            wanted = {**config, **limits, "discard": "old", "num_replicas": 1}
            checked(await wire.ask(f"{API}.STREAM.CREATE.{self._stream}", wanted))

    @contextlib.asynccontextmanager
    async def _speaking(self, expected: Wire | None = None, *, seconds: float | None = None) -> AsyncIterator[Wire]:
        """The connection, opened when there is none. Whatever goes wrong ends it: nothing of it can arrive later."""
        try:
            async with asyncio.timeout(self._timeout if seconds is None else seconds):
                if expected is not None and self._wire is not expected:
                    raise Closed("the connection was closed")
                async with self._opening:
                    if self._wire is None or self._wire.client.is_closed:
                        self._wire = await Wire.open(self._address, self._timeout)
                        if self._create:
                            await self._make(self._wire)
                yield self._wire
        except StreamMissing:
            if self._create:
                await self._hang_up()  # the next connection makes it
            raise
        except BrokerUnavailable:
            raise
        except BaseException as error:
            await self._hang_up()
            if isinstance(error, OSError | Closed | Refused) or is_nats(error):
                self._fail(error)
            raise

    async def _hang_up(self) -> None:
        wire, self._wire = self._wire, None
        self._pull = None
        if wire is not None:
            await wire.close()

    def _fail(self, error: BaseException) -> NoReturn:
        text = self._address.masked(error) or f"no answer within {self._timeout:g} s"
        raise BrokerUnavailable(f"{self._address} cannot be used: {text}") from error


def _number(position: str) -> int:
    number = bare(position)
    if not number.isdecimal():
        raise ValueError(f"{position!r} is no position in a JetStream stream, which is a number")
    return int(number)


def _repeats(raw: Raw, first: int) -> bool:
    """Whether the server has kept a message out because its id is in the stream, not after `first`."""
    if b'"duplicate"' not in raw[1]:
        return False
    answer = answer_of(raw)
    return bool(answer.get("duplicate")) and answer["seq"] <= first


def _position(number: int, incarnation: str, moment: str) -> str:
    """`<sequence>@<incarnation>.<moment>`, or what is known of it."""
    if not incarnation:
        return str(number)
    return f"{number}@{incarnation}.{moment}" if moment else f"{number}@{incarnation}"


def _nanoseconds(time: str) -> str:
    """Of RFC 3339, which leaves out zeros at the end of the fraction."""
    whole, fraction, zone = _TIME.fullmatch(time).groups("")  # type: ignore[union-attr]
    return f"{int(datetime.fromisoformat(whole + zone).timestamp())}{fraction.ljust(9, '0')}"


def _incarnation(info: dict[str, Any]) -> str:
    """When the stream was made: another one of the same name has another."""
    return "".join(filter(str.isdigit, info["created"]))
