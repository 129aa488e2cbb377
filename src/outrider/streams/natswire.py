"""One connection to a NATS server, as an adapter needs it: nothing is sent again, and every answer finds its question.

The client library makes an object and a turn of the event loop of every message, which at thousands a second is most of
the work: what is published, and its answers, go past that, as bytes.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from outrider.streams.url import Address

if TYPE_CHECKING:
    from nats.aio.client import Client
    from nats.aio.msg import Msg
    from nats.aio.subscription import Subscription

Message = tuple[str, bytes, bytes]
"""Subject, headers as they are sent, and data."""
Raw = tuple[bytes | None, bytes]
"""Headers and data, as they came."""

API = "$JS.API"
AHEAD = 50
"""After so many messages the client sends them, while the next are made."""
IDLE = 30
"""Seconds after which the server removes a consumer that nobody uses."""
SUBJECTS = 10_000
"""Subjects that are remembered."""
SILENCE = 0.25
"""Seconds without an answer to a pull after which its consumer is looked for."""
NOT_FOUND = 404


class Closed(Exception):
    """The connection has ended."""


class Refused(Exception):
    """The server refuses what was asked of it."""


class ConsumerGone(Closed):
    """The server has removed the consumer."""


class Wire:
    """One connection and the answers to what was sent over it. It never reconnects."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.inbox = client.new_inbox()
        self.sid = -1
        """Of the subscription that answers come to."""
        self._patterns: Sequence[str] = ()
        self._taken: set[str] = set()
        self._waiting: dict[str, Answers] = {}
        self._count = 0

    @classmethod
    async def open(cls, address: Address, timeout: float) -> Wire:  # noqa: ASYNC109 (of the library's own)
        """To the first of its hosts that takes us. Without the library's own search, which would also reconnect."""
        hosts = address.place.split(",")
        for host in hosts:
            try:
                return await cls._open(address, host, timeout / len(hosts))
            except Exception as error:
                if host is hosts[-1] or not (isinstance(error, OSError) or is_nats(error)):
                    raise
        raise AssertionError("there is a last host")

    @classmethod
    async def _open(cls, address: Address, host: str, timeout: float) -> Wire:  # noqa: ASYNC109
        from nats.aio.client import Client

        tls = _tls(address)

        class Careful(Client):
            def _connect_command(self) -> bytes:
                # The library would go on without, and send the password as it is.
                if tls is not None and not self._server_info.get("tls_required"):
                    raise Refused("the server does not offer TLS")
                return super()._connect_command()

            async def _process_msg(self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes) -> None:
                if sid == wire.sid:
                    wire.hear(bytes(subject), headers, data)
                else:
                    await super()._process_msg(sid, subject, reply, data, headers)

        client = Careful()
        wire = cls(client)

        async def ended() -> None:
            for answers in wire._waiting.values():
                answers.fail(Closed("the connection was lost"))

        async def failed(error: Exception) -> None:
            # The library would try the same host again and again. Later it closes the connection, which `ended` hears.
            if not client.is_connected and not client.is_closed:
                raise error

        who: dict[str, Any] = {"user": address.user, "password": address.password}
        if address.password is None:
            who = {"token": address.user}
        try:
            await client.connect(
                [f"{address.scheme}://{host}"],
                allow_reconnect=False,
                connect_timeout=timeout,  # type: ignore[arg-type]
                closed_cb=ended,
                error_cb=failed,
                tls=tls,
                name="outrider",
                **who,
            )
            wire.sid = (await client.subscribe(f"{wire.inbox}.>"))._id
        except BaseException:
            await wire.close()
            raise
        return wire

    async def close(self) -> None:
        with contextlib.suppress(Exception):
            async with asyncio.timeout(1):
                await self.client.close()

    def know(self, patterns: Sequence[str]) -> None:
        """What the stream takes, as of now."""
        if patterns != self._patterns:
            self._patterns = patterns
            self._taken.clear()

    def takes(self, subject: str) -> bool:
        """Asked before anything is sent: of what no stream takes, a server says nothing where somebody else listens."""
        if subject in self._taken:
            return True
        if not any(covers(pattern, subject) for pattern in self._patterns):
            return False
        if len(self._taken) >= SUBJECTS:
            self._taken.clear()
        self._taken.add(subject)
        return True

    @property
    def most(self) -> int:
        """Bytes of a message with its headers."""
        return self.client.max_payload

    async def publish(self, messages: Iterable[Message]) -> list[Raw]:
        """All of them, then all their answers, in the same order."""
        with self.expecting() as (answers, prefix):
            number, commands = 0, bytearray()
            for number, (subject, headers, data) in enumerate(messages, 1):
                line = f"HPUB {subject} {prefix}.{number} {len(headers)} {len(headers) + len(data)}\r\n"
                commands += line.encode() + headers + data + b"\r\n"
                if number % AHEAD == 0:
                    await self._send(commands)
                    commands = bytearray()
            await self._send(commands)
            found = await answers.all(number)
        return [found[str(n)] for n in range(1, number + 1)]

    async def _send(self, commands: bytearray) -> None:
        """The client sends only when it comes to its turn."""
        await self.client._send_command(bytes(commands))
        await self.client._flush_pending()
        await asyncio.sleep(0)

    async def ask(self, subject: str, request: dict[str, Any] | None = None) -> dict[str, Any]:
        with self.expecting() as (answers, prefix):
            await self.client.publish(subject, json.dumps(request).encode() if request else b"", f"{prefix}.1")
            return answer_of((await answers.all(1))["1"])

    @contextlib.contextmanager
    def expecting(self) -> Iterator[tuple[Answers, str]]:
        """What collects answers, and where they shall go: to this subject and a number."""
        if self.client.is_closed:
            raise Closed("the connection was lost")
        self._count += 1
        token = str(self._count)
        answers = self._waiting[token] = Answers()
        try:
            yield answers, f"{self.inbox}.{token}"
        finally:
            del self._waiting[token]

    def hear(self, subject: bytes, headers: bytes | None, data: bytes) -> None:
        token, _, number = subject[len(self.inbox) + 1 :].decode().partition(".")
        if (answers := self._waiting.get(token)) is not None:
            answers.add(number, (headers, data))


class Answers:
    """What comes back, under the number of what was sent."""

    def __init__(self) -> None:
        self._found: dict[str, Any] = {}
        self._wanted: int | None = None
        self._done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def add(self, number: str, answer: Any) -> None:
        self._found[number] = answer
        if len(self._found) == self._wanted:
            self.end()

    def end(self) -> None:
        if not self._done.done():
            self._done.set_result(None)

    def fail(self, error: Exception) -> None:
        if not self._done.done():
            self._done.set_exception(error)

    async def all(self, number: int) -> dict[str, Any]:
        """Waits for that many answers; returns fewer if the connection ends."""
        await self.within(number, None)
        return self._found

    async def within(self, number: int, seconds: float | None) -> bool:
        """Whether they have come, in this time."""
        self._wanted = number
        if len(self._found) < number and not self._done.done():
            await asyncio.wait([self._done], timeout=seconds)
        if self._done.done():
            self._done.result()
        return len(self._found) >= number or self._done.done()


class Pull:
    """A consumer of this process alone, which the server forgets when nobody uses it, and where it is."""

    def __init__(self, wire: Wire, stream: str, name: str, last: int, incarnation: str) -> None:
        self.incarnation = incarnation
        self._wire, self._stream, self._name = wire, stream, name
        self._last, self._delivered = last, 0
        self._inbox = wire.client.new_inbox()
        self._subscription: Subscription | None = None
        self._answers: Answers | None = None
        self._heard_so_far = 0

    @classmethod
    async def begin(cls, wire: Wire, stream: str, first: int, incarnation: str = "") -> Pull:
        config = {
            "deliver_policy": "by_start_sequence",
            "opt_start_seq": first,
            "ack_policy": "none",
            "inactive_threshold": IDLE * 10**9,
            "mem_storage": True,
            "num_replicas": 1,
        }
        answer = await wire.ask(f"{API}.CONSUMER.CREATE.{stream}", {"stream_name": stream, "config": config})
        pull = cls(wire, stream, checked(answer)["name"], first - 1, incarnation)
        # Of its own, since what is pulled keeps the subject that it was published under.
        pull._subscription = await wire.client.subscribe(
            pull._inbox, cb=pull._heard, pending_msgs_limit=0, pending_bytes_limit=0
        )
        return pull

    def follows(self, wire: Wire, last: int, incarnation: str) -> bool:
        return self._wire is wire and self._last == last and incarnation in ("", self.incarnation)

    async def fetch(self, most: int, wait: float = 0) -> list[tuple[int, Msg]]:
        """The next messages with their sequences; without `wait`, what is there."""
        limits = {"expires": int(wait * 1e9)} if wait else {"no_wait": True}
        subject = f"{API}.CONSUMER.MSG.NEXT.{self._stream}.{self._name}"
        found = []
        with self._wire.expecting() as (self._answers, _):
            await self._wire.client.publish(subject, json.dumps({"batch": most, **limits}).encode(), self._inbox)
            if not await self._answers.within(most, wait + SILENCE):
                await self._look()
            messages = await self._answers.all(most)
        for message in messages.values():
            if not message.reply:
                if (message.headers or {}).get("Status") in ("404", "408"):
                    break
                raise ConsumerGone(f"the server has ended the pull: {(message.headers or {}).get('Description', '')}")
            number, delivered = map(int, message.reply.split(".")[-4:-2])
            if delivered != self._delivered + 1:
                raise Closed("a message was lost on the way")
            self._last, self._delivered = number, delivered
            found.append((number, message))
        return found

    async def _look(self) -> None:
        """Of a consumer that is gone the server says nothing."""
        answer = await self._wire.ask(f"{API}.CONSUMER.INFO.{self._stream}.{self._name}")
        if answer.get("error", {}).get("code") == NOT_FOUND:
            raise ConsumerGone("the server has removed the consumer")

    async def _heard(self, message: Msg) -> None:
        """A message, or how the server closes the request before all have come: that has no reply."""
        if self._answers is not None and (message.reply or (message.headers or {}).get("Status") != "100"):
            self._heard_so_far += 1
            self._answers.add(str(self._heard_so_far), message)
            if not message.reply:
                self._answers.end()

    async def forget(self) -> None:
        if self._subscription is not None:
            await self._subscription.unsubscribe()

    async def remove(self) -> None:
        if not self._wire.client.is_closed:
            await self.forget()
            await self._wire.ask(f"{API}.CONSUMER.DELETE.{self._stream}.{self._name}")


def answer_of(raw: Raw) -> dict[str, Any]:
    headers, data = raw
    if headers:
        status = headers.split(b"\r\n", 1)[0].split()
        text = "nobody answers: no JetStream, no such stream"
        return {"error": {"code": int(status[1]) if len(status) > 1 else 0, "err_code": 0, "description": text}}
    found: dict[str, Any] = json.loads(data)
    return found


def checked(answer: dict[str, Any]) -> dict[str, Any]:
    if "error" in answer:
        raise Refused(answer["error"].get("description", "an error without a description"))
    return answer


def is_subject(subject: object) -> bool:
    """Whether a message can have it, whatever the stream takes."""
    return isinstance(subject, str) and all(subject.split(".")) and not set(subject) & set("*> \t\r\n")


def covers(pattern: str, subject: str) -> bool:
    wanted, given = pattern.split("."), subject.split(".")
    for n, word in enumerate(wanted):
        if word == ">":
            return len(given) > n
        if n >= len(given) or word not in ("*", given[n]):
            return False
    return len(wanted) == len(given)


def _tls(address: Address) -> ssl.SSLContext | None:
    trust, own, key = (address.parameters.get(f"ssl_{name}") for name in ("ca_certs", "certfile", "keyfile"))
    if address.scheme != "tls" and not (trust or own):
        return None
    context = ssl.create_default_context(cafile=trust)
    if own:
        context.load_cert_chain(own, key)
    return context


def is_nats(error: BaseException) -> bool:
    from nats.errors import Error

    return isinstance(error, Error)
