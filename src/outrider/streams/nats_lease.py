"""A lease in NATS JetStream, for relays without a Redis: one message that expires, replaced only by its writer."""

from __future__ import annotations

import re
import secrets
from base64 import b64decode

from outrider.errors import ConfigError
from outrider.streams.codecs import EnvelopeCodec
from outrider.streams.lease import check_ttl
from outrider.streams.nats_append import WRONG_LAST
from outrider.streams.nats_connection import NatsConnection, checked, parse_reply
from outrider.streams.nats_stream import API, NatsStream
from outrider.streams.url import Address

NAME = re.compile(r"[A-Za-z0-9_-]{1,200}")


class NatsLease:
    """The message is in the stream `lease_<name>`, which is created. Each renewal writes it again, if it is still ours."""

    def __init__(self, url: str, name: str, *, ttl: float = 30, timeout: float = 5) -> None:
        """`ttl`, `timeout`: seconds until the lease expires, and to wait for an answer."""
        if not NAME.fullmatch(name):
            raise ConfigError(f"{name!r} cannot be the name of a lease: use letters, digits, _ and -")
        check_ttl(ttl)
        self.ttl = ttl
        self._stream = NatsStream(Address.of(url), f"lease_{name}", EnvelopeCodec(), timeout, create=False)
        self._subject = f"{self._stream.name}.holder"
        self._token = secrets.token_hex(16).encode()
        self._sequence = 0
        """Of the message that this lease wrote last."""

    def __repr__(self) -> str:
        return f"<NatsLease {self._stream.name} at {self._stream.address}>"

    async def acquire(self) -> bool:
        async with self._stream.connected() as connection:
            await self._create(connection)
            if await self._write(connection, 0):
                return True
            found = await connection.request(self._api("MSG.GET"), {"last_by_subj": self._subject})
            message = found.get("message", {})
            ours = b64decode(message.get("data", "")) == self._token
            return ours and await self._write(connection, message["seq"])

    async def renew(self) -> bool:
        async with self._stream.connected() as connection:
            return await self._write(connection, self._sequence)

    async def release(self) -> None:
        """Also closes the connection; `acquire` opens it again."""
        try:
            if self._sequence:
                async with self._stream.connected() as connection:
                    await connection.request(self._api("MSG.DELETE"), {"seq": self._sequence})
        finally:
            await self._stream.disconnect()

    async def _create(self, connection: NatsConnection) -> None:
        """Does nothing if the stream is there. One that was made with another ttl gets this one."""
        config = {
            "name": self._stream.name,
            "subjects": [self._subject],
            "retention": "limits",
            "storage": "memory",
            "max_msgs_per_subject": 1,
            "max_age": int(self.ttl * 1e9),
        }
        if "error" in await connection.request(self._api("CREATE"), config):
            checked(await connection.request(self._api("UPDATE"), config))

    async def _write(self, connection: NatsConnection, after: int) -> bool:
        """Writes the message if the last one is `after`; 0 = if there is none."""
        headers = f"NATS/1.0\r\nNats-Expected-Last-Subject-Sequence: {after}\r\n\r\n".encode()
        [reply] = await connection.publish([(self._subject, headers, self._token)])
        answer = parse_reply(reply)
        if answer.get("error", {}).get("err_code") in WRONG_LAST:
            return False
        self._sequence = checked(answer)["seq"]
        return True

    def _api(self, verb: str) -> str:
        return f"{API}.STREAM.{verb}.{self._stream.name}"
