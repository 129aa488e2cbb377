"""One connection to a NATS server. It sends nothing twice, and matches every reply to its request."""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
from collections.abc import Iterable, Iterator
from typing import Any

from outrider.streams.url import Address

RawMessage = tuple[str, bytes, bytes]
"""Subject, encoded headers and data of a message to publish."""
RawReply = tuple[bytes | None, bytes]
"""Headers and data."""

SEND_AFTER = 50
"""Messages per write: these are on their way while the next ones are encoded."""


class NatsFailure(Exception):
    """The connection was lost, or the server refused a request."""


class Replies:
    """Collects the replies to one request, or to one batch of messages, by their number."""

    def __init__(self) -> None:
        self.found: dict[str, Any] = {}
        self._wanted: int | None = None
        self._done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def add(self, number: str, reply: Any) -> None:
        self.found[number] = reply
        if len(self.found) == self._wanted:
            self.end()

    def end(self) -> None:
        """No more replies will come."""
        if not self._done.done():
            self._done.set_result(None)

    def fail(self, error: Exception) -> None:
        if not self._done.done():
            self._done.set_exception(error)

    async def wait(self, count: int, seconds: float | None = None) -> bool:
        """Wait for `count` replies or the end. False after `seconds` without either."""
        self._wanted = count
        if len(self.found) < count and not self._done.done():
            await asyncio.wait([self._done], timeout=seconds)
        if self._done.done():
            self._done.result()
        return len(self.found) >= count or self._done.done()


class NatsConnection:
    """It never reconnects: after a failure, what the client still held could arrive later."""

    def __init__(self, address: Address) -> None:
        from outrider.streams import nats_private

        self._tls = _tls(address)
        self.client = nats_private.RawClient(self._check_server)
        self._address = address
        self._inbox = self.client.new_inbox()
        self._waiting: dict[str, Replies] = {}
        self._requests = 0

    @classmethod
    async def open(cls, address: Address, timeout: float) -> NatsConnection:  # noqa: ASYNC109 (the client's own)
        """Connect to the first host that answers. The client's own search for hosts would also reconnect."""
        hosts = address.location.split(",")
        for host in hosts:
            connection = cls(address)
            try:
                await connection._connect(host, timeout / len(hosts))
                return connection
            except BaseException as error:
                await connection.close()
                if host is hosts[-1] or not (isinstance(error, OSError) or is_client_error(error)):
                    raise
        raise AssertionError("unreachable: the last host either connects or raises")

    async def _connect(self, host: str, seconds: float) -> None:
        address = self._address
        login = {"user": address.user, "password": address.password}
        if address.password is None:
            login = {"token": address.user}
        await self.client.connect(
            [f"{address.scheme}://{host}"],
            allow_reconnect=False,
            connect_timeout=seconds,  # type: ignore[arg-type]
            closed_cb=self._closed,
            error_cb=self._failed,
            tls=self._tls,
            name="outrider",
            **login,  # type: ignore[arg-type]
        )
        await self.client.subscribe_raw(f"{self._inbox}.>", self._received)

    def _check_server(self, info: dict[str, Any]) -> None:
        """The client would go on without TLS and send the password in clear text."""
        if self._tls is not None and not info.get("tls_required"):
            raise NatsFailure("the server does not offer TLS")

    async def _closed(self) -> None:
        for replies in self._waiting.values():
            replies.fail(NatsFailure("the connection was lost"))

    async def _failed(self, error: Exception) -> None:
        """While connecting, the client would try the same host again and again. Later it closes the connection."""
        if not self.client.is_connected and not self.client.is_closed:
            raise error

    async def close(self) -> None:
        with contextlib.suppress(Exception):
            async with asyncio.timeout(1):
                await self.client.close()

    @property
    def is_closed(self) -> bool:
        return self.client.is_closed

    async def request(self, subject: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        """The JSON of the reply; errors of the server are in it."""
        with self.expect_replies() as (replies, prefix):
            await self.client.publish(subject, json.dumps(body).encode() if body else b"", f"{prefix}.1")
            await replies.wait(1)
            return parse_reply(replies.found["1"])

    async def publish(self, messages: Iterable[RawMessage]) -> list[RawReply]:
        """Send all messages, then wait for all replies. These are in the order of the messages."""
        with self.expect_replies() as (replies, prefix):
            count, commands = 0, bytearray()
            for count, (subject, headers, data) in enumerate(messages, 1):
                line = f"HPUB {subject} {prefix}.{count} {len(headers)} {len(headers) + len(data)}\r\n"
                commands += line.encode() + headers + data + b"\r\n"
                if count % SEND_AFTER == 0:
                    await self.client.send_raw(bytes(commands))
                    commands = bytearray()
            await self.client.send_raw(bytes(commands))
            await replies.wait(count)
        return [replies.found[str(number)] for number in range(1, count + 1)]

    @contextlib.contextmanager
    def expect_replies(self) -> Iterator[tuple[Replies, str]]:
        """A collector, and the prefix of the subjects to reply to; a number follows. It fails if the connection is lost."""
        if self.is_closed:
            raise NatsFailure("the connection was lost")
        self._requests += 1
        token = str(self._requests)
        replies = self._waiting[token] = Replies()
        try:
            yield replies, f"{self._inbox}.{token}"
        finally:
            del self._waiting[token]

    def _received(self, subject: bytes, headers: bytes | None, data: bytes) -> None:
        token, _, number = subject[len(self._inbox) + 1 :].decode().partition(".")
        if (replies := self._waiting.get(token)) is not None:
            replies.add(number, (headers, data))


def parse_reply(reply: RawReply) -> dict[str, Any]:
    """JetStream replies with JSON. A reply with headers comes from the server itself: nobody listens to the subject."""
    headers, data = reply
    if headers:
        status = headers.split(b"\r\n", 1)[0].split()
        text = "nobody answers: no JetStream, no such stream"
        return {"error": {"code": int(status[1]) if len(status) > 1 else 0, "err_code": 0, "description": text}}
    found: dict[str, Any] = json.loads(data)
    return found


def checked(answer: dict[str, Any]) -> dict[str, Any]:
    if "error" in answer:
        raise NatsFailure(answer["error"].get("description", "an error without a description"))
    return answer


def is_client_error(error: BaseException) -> bool:
    from nats.errors import Error

    return isinstance(error, Error)


def _tls(address: Address) -> ssl.SSLContext | None:
    ca_certs, certfile, keyfile = (
        address.parameters.get(name) for name in ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile")
    )
    if address.scheme != "tls" and not (ca_certs or certfile):
        return None
    context = ssl.create_default_context(cafile=ca_certs)
    if certfile:
        context.load_cert_chain(certfile, keyfile)
    return context
