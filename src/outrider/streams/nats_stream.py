"""One JetStream stream at its server: the connection to it, its configuration and state, single messages."""

from __future__ import annotations

import asyncio
import contextlib
from base64 import b64decode
from collections.abc import AsyncIterator, Sequence
from typing import Any, NoReturn
from uuid import UUID

from outrider.errors import BrokerUnavailable, StreamMissing
from outrider.streams.nats_connection import NatsConnection, NatsFailure, checked, is_client_error
from outrider.streams.stream import Codec, bare_position, event_id_in, may_name
from outrider.streams.url import Address

API = "$JS.API"
MSG_ID = "Nats-Msg-Id"
NOT_FOUND = 404
STREAM_NOT_FOUND = 10059
REMEMBERED_SUBJECTS = 10_000


class AcceptedSubjects:
    """The subjects that a stream accepts, as of its last INFO.

    They are checked before anything is sent: if no stream accepts a subject but somebody listens to it, nobody replies.
    """

    def __init__(self) -> None:
        self._patterns: Sequence[str] = ()
        self._known: set[str] = set()

    def update(self, patterns: Sequence[str]) -> None:
        if patterns != self._patterns:
            self._patterns = patterns
            self._known.clear()

    def __contains__(self, subject: str) -> bool:
        if subject in self._known:
            return True
        if not any(_matches(pattern, subject) for pattern in self._patterns):
            return False
        if len(self._known) >= REMEMBERED_SUBJECTS:
            self._known.clear()
        self._known.add(subject)
        return True


class NatsStream:
    def __init__(self, address: Address, name: str, codec: Codec, timeout: float, *, create: bool) -> None:
        self.address = address
        self.name = name
        self.codec = codec
        self.timeout = timeout
        self.create = create
        self.accepted = AcceptedSubjects()
        self._opening = asyncio.Lock()
        self._connection: NatsConnection | None = None

    def copy(self) -> NatsStream:
        return NatsStream(self.address, self.name, self.codec, self.timeout, create=self.create)

    @contextlib.asynccontextmanager
    async def connected(
        self, expected: NatsConnection | None = None, *, seconds: float | None = None
    ) -> AsyncIterator[NatsConnection]:
        """The connection, opened if there is none; only `expected`, if given. Any failure closes it."""
        try:
            async with asyncio.timeout(self.timeout if seconds is None else seconds):
                if expected is not None and self._connection is not expected:
                    raise NatsFailure("the connection was closed")
                async with self._opening:
                    if self._connection is None or self._connection.is_closed:
                        self.accepted = AcceptedSubjects()
                        self._connection = await NatsConnection.open(self.address, self.timeout)
                yield self._connection
        except (BrokerUnavailable, StreamMissing):
            raise
        except BaseException as error:
            await self.disconnect()
            if isinstance(error, OSError | NatsFailure) or is_client_error(error):
                text = self.address.masked(error) or f"no answer within {self.timeout:g} s"
                raise BrokerUnavailable(f"{self.address} cannot be used: {text}") from error
            raise

    def is_connected(self, connection: NatsConnection) -> bool:
        """Whether this is the connection in use."""
        return self._connection is connection and not connection.is_closed

    async def disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()

    async def exists(self, connection: NatsConnection) -> bool:
        return _is_found(await self._request_info(connection))

    async def info(self, connection: NatsConnection, *, create: bool | None = None) -> dict[str, Any]:
        """Configuration and state. A missing stream is created with `create=True`, else it is StreamMissing."""
        answer = await self._request_info(connection)
        if not _is_found(answer):
            if not (self.create if create is None else create):
                raise StreamMissing(
                    f"{self.address} has no stream {self.name}: create it (nats stream add {self.name} --subjects "
                    f"'{self.name}.>' --storage file), or let JetStream(..., create=True) create it"
                )
            config = {"name": self.name, "subjects": [f"{self.name}.>"], "retention": "limits", "storage": "file"}
            checked(await connection.request(f"{API}.STREAM.CREATE.{self.name}", config))
            answer = await self._request_info(connection)
        info = checked(answer)
        if unfit := _unfit(info["config"]):
            raise StreamMissing(
                f"the stream {self.name} of {self.address} {unfit}, so one relay alone cannot write it in order: use "
                "another stream, or change its configuration (nats stream edit)"
            )
        self.accepted.update(info["config"].get("subjects") or ())
        return info

    async def _request_info(self, connection: NatsConnection) -> dict[str, Any]:
        return await connection.request(f"{API}.STREAM.INFO.{self.name}")

    async def end(self, connection: NatsConnection) -> str:
        return str((await self.info(connection))["state"]["last_seq"])

    async def message(self, connection: NatsConnection, sequence: int) -> dict[str, Any] | None:
        """The stored message; None if it is gone or was never there."""
        answer = await connection.request(f"{API}.STREAM.MSG.GET.{self.name}", {"seq": sequence})
        if answer.get("error", {}).get("code") == NOT_FOUND:
            return None
        message: dict[str, Any] = checked(answer)["message"]
        return message

    async def may_hold(self, connection: NatsConnection, position: str) -> bool:
        """False if another event is at this position. Sequences have no gaps: where no message is, there was one."""
        if position == bare_position(position):
            return True
        message = await self.message(connection, sequence_of(position))
        return message is None or may_name(position, self._event_id(message))

    def _event_id(self, message: dict[str, Any]) -> UUID | None:
        for line in b64decode(message.get("hdrs", "")).decode(errors="replace").split("\r\n"):
            header, _, value = line.partition(":")
            if header == MSG_ID:
                with contextlib.suppress(ValueError):
                    return UUID(value.strip())
        return event_id_in(self.codec, b64decode(message.get("data", "")))

    def fail_not_accepted(self, subject: str) -> NoReturn:
        """Nothing is wrong with the event: it can be sent when the stream accepts its subject."""
        raise StreamMissing(
            f"the stream {self.name} of {self.address} does not accept the subject {subject!r}: add it "
            f"(nats stream edit {self.name} --subjects ...), or let subject_for= return another one"
        )


def sequence_of(position: str) -> int:
    number = bare_position(position)
    if not number.isdecimal():
        raise ValueError(f"{position!r} is not a position in a JetStream stream, which is a number")
    return int(number)


def _is_found(answer: dict[str, Any]) -> bool:
    return bool(answer.get("error", {}).get("err_code") != STREAM_NOT_FOUND)


def _unfit(config: dict[str, Any]) -> str:
    """Why a relay cannot use the stream; empty if it can."""
    if config.get("mirror"):
        return "is a mirror"
    if config.get("sources"):
        return "copies other streams (sources)"
    if config.get("sealed"):
        return "is sealed"
    if config.get("no_ack"):
        return "does not acknowledge (no_ack)"
    if config.get("retention", "limits") != "limits":
        return f"has the retention {config['retention']}, not limits"
    return ""


def _matches(pattern: str, subject: str) -> bool:
    wanted, given = pattern.split("."), subject.split(".")
    for n, word in enumerate(wanted):
        if word == ">":
            return len(given) > n
        if n >= len(given) or word not in ("*", given[n]):
            return False
    return len(wanted) == len(given)
