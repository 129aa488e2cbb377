"""A TCP proxy before a Postgres, in a thread of its own: it cuts, loses or slows the wire, and counts round trips.

It reads the v3 protocol and forwards whole messages; a client that asks for encryption is refused, so use `Proxy.dsn`.
Every switch holds for open and for new connections, from any thread, and is in force when its method returns.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import socket
import struct
import threading
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Concatenate, Literal, ParamSpec, Self

from psycopg.conninfo import conninfo_to_dict, make_conninfo

Side = Literal["client", "server"]
Given = ParamSpec("Given")

CHUNK = 256 * 1024
DEADLINE = 60.0
RESET_ON_CLOSE = struct.pack("ii", 1, 0)
ENCRYPTION_REQUESTS = (80877103, 80877104)


class Frames:
    """Splits one direction of a connection into whole messages: (type, bytes). A start-up packet has the type ""."""

    def __init__(self, *, typed: bool) -> None:
        self._typed = typed
        self._rest = bytearray()

    def feed(self, chunk: bytes) -> list[tuple[str, bytes]]:
        self._rest += chunk
        found = []
        while len(self._rest) >= 4 + self._typed:
            [length] = struct.unpack_from("!i", self._rest, self._typed)
            assert length >= 4, "this is not the v3 protocol"
            size = length + self._typed
            if len(self._rest) < size:
                break
            message = bytes(self._rest[:size])
            del self._rest[:size]
            found.append((chr(message[0]) if self._typed else "", message))
            if not self._typed:
                asked = int.from_bytes(message[4:8])
                assert asked not in ENCRYPTION_REQUESTS, "the client wants encryption: connect with Proxy.dsn"
                self._typed = True
        return found


@dataclass(eq=False)
class Wire:
    """One client's connection. The server owes one ReadyForQuery for the start-up and for each Query and Sync."""

    client: socket.socket
    server: socket.socket | None = None
    dead: bool = False
    owed: int = 1
    answered: int = 0
    doomed: int | None = None
    """The number of the ReadyForQuery after which the wire is cut; what comes with it is withheld."""

    def close(self) -> None:
        for end in (self.client, self.server):
            if end is not None:
                if end.family != socket.AF_UNIX:
                    end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)
                end.close()


@dataclass(eq=False)
class Faults:
    refusing: bool = False
    black_hole: bool = False
    delay: float = 0
    left: dict[Side, int] = field(default_factory=dict)
    unanswered: Counter[bytes] = field(default_factory=Counter)
    over: asyncio.Event = field(default_factory=asyncio.Event)


def _switch(
    method: Callable[Concatenate[Proxy, Given], Coroutine[Any, Any, None]],
) -> Callable[Concatenate[Proxy, Given], None]:
    """Makes a blocking method of one that runs on the proxy's own loop."""

    @functools.wraps(method)
    def run(proxy: Proxy, /, *args: Given.args, **kwargs: Given.kwargs) -> None:
        asyncio.run_coroutine_threadsafe(method(proxy, *args, **kwargs), proxy._loop).result(DEADLINE)

    return run


class Proxy:
    def __init__(self, dsn: str) -> None:
        parts = conninfo_to_dict(dsn)
        host, port = str(parts.get("hostaddr") or parts["host"]), int(parts.get("port") or 5432)
        self._family: int = socket.AF_UNIX
        self._address: Any = f"{host}/.s.PGSQL.{port}"
        if not host.startswith("/"):
            self._family, _, _, _, self._address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        self._parts = parts
        self._changed = threading.Condition()
        self._messages: Counter[str] = Counter()
        self._bytes: Counter[Side] = Counter()
        self._cuts = 0
        self._wires: dict[asyncio.Task[None], Wire] = {}
        self._faults = Faults()
        self._broken: list[BaseException] = []

    def __enter__(self) -> Self:
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self._listener.setblocking(False)
        self._loop = asyncio.new_event_loop()
        self._loop.add_reader(self._listener, self._accept)
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Cuts what is still open. Raises what went wrong in the proxy itself."""
        try:
            self._close()
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(DEADLINE)
            self._loop.close()
        if self._broken:
            raise self._broken[0]

    @property
    def dsn(self) -> str:
        """The given DSN, by way of the proxy and without encryption."""
        host, port = self._listener.getsockname()
        way = {"host": host, "hostaddr": None, "port": port, "sslmode": "disable", "gssencmode": "disable"}
        return make_conninfo(**{**self._parts, **way})

    @property
    def messages(self) -> Counter[str]:
        """How many messages of each type the servers sent so far, forwarded or not."""
        with self._changed:
            return Counter(self._messages)

    @property
    def round_trips(self) -> int:
        """How many ReadyForQuery the servers sent so far. Opening a connection is one."""
        return self.messages["Z"]

    @property
    def client_bytes(self) -> int:
        """How many bytes came from the clients so far, forwarded or not."""
        with self._changed:
            return self._bytes["client"]

    @property
    def server_bytes(self) -> int:
        """How many bytes came from the servers so far, forwarded or not."""
        with self._changed:
            return self._bytes["server"]

    @property
    def connections(self) -> int:
        """How many connections are open now."""
        with self._changed:
            return len(self._wires)

    @property
    def cuts(self) -> int:
        """How many connections any of the switches cut or refused so far."""
        with self._changed:
            return self._cuts

    def wait_for(self, condition: Callable[[], bool], timeout: float = DEADLINE) -> None:
        """Until the counts above fulfil the condition. Blocks the calling thread."""
        with self._changed:
            if not self._changed.wait_for(condition, timeout):
                raise TimeoutError(f"not so within {timeout} s")

    @_switch
    async def cut(self) -> None:
        """Reset all connections. New ones pass."""
        await self._cut(self._wires)

    @_switch
    async def refuse(self) -> None:
        """Reset new connections as soon as they open. Open ones go on."""
        self._faults.refusing = True

    @_switch
    async def black_hole(self) -> None:
        """Take everything and forward nothing, not even a close; new connections do not reach the server.

        What was taken is lost, so `heal` cuts every connection that saw the black hole.
        """
        self._faults.black_hole = True
        for wire in self._wires.values():
            wire.dead = True

    @_switch
    async def lose(self) -> None:
        """Like `black_hole`, but only for the connections that are open now. Nothing cuts them."""
        for wire in self._wires.values():
            wire.dead = True

    @_switch
    async def slow(self, seconds: float) -> None:
        """Hold every chunk back for so long, in both directions."""
        self._faults.delay = seconds

    @_switch
    async def cut_after(self, n_bytes: int, direction: Side = "client") -> None:
        """Cut, once, the connection over which the n-th byte from now comes; those up to it are forwarded.

        The bytes that come from `direction` on all connections count.
        """
        self._faults.left[direction] = n_bytes

    @_switch
    async def cut_reply_to(self, sql: bytes, times: int = 1) -> None:
        """Forward the next Query or Parse that contains `sql`, wait until the server is done, drop its reply and cut.

        In a pipeline, the replies up to the same Sync are dropped too. A statement that is prepared already is not seen.
        """
        self._faults.unanswered[sql] += times

    @_switch
    async def heal(self) -> None:
        """Let everything pass, at once also what is held back. See `black_hole` for what it swallowed."""
        self._faults.over.set()
        self._faults = Faults()
        await self._cut(task for task, wire in self._wires.items() if wire.dead)

    @_switch
    async def _close(self) -> None:
        self._loop.remove_reader(self._listener)
        self._listener.close()
        await self._cut(self._wires)

    async def _cut(self, tasks: Iterable[asyncio.Task[None]]) -> None:
        ending = list(tasks)
        for task in ending:
            task.cancel()
        if ending:
            await asyncio.wait(ending)
        self._count_cuts(len(ending))

    def _accept(self) -> None:
        try:
            client, _ = self._listener.accept()
        except (BlockingIOError, ConnectionError):
            return
        client.setblocking(False)
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        wire = Wire(client, dead=self._faults.black_hole)
        if self._faults.refusing:
            wire.close()
            self._count_cuts(1)
            return
        task = self._loop.create_task(self._carry(wire))
        with self._changed:
            self._wires[task] = wire
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        with self._changed:
            self._wires.pop(task).close()
            if not task.cancelled() and (error := task.exception()) is not None:
                self._broken.append(error)
            self._changed.notify_all()

    async def _carry(self, wire: Wire) -> None:
        try:
            async with asyncio.TaskGroup() as both:
                if not wire.dead:
                    wire.server = socket.socket(self._family, socket.SOCK_STREAM)
                    wire.server.setblocking(False)
                    await self._loop.sock_connect(wire.server, self._address)
                    both.create_task(self._pump(wire, "server", wire.server, wire.client))
                both.create_task(self._pump(wire, "client", wire.client, wire.server))
        except* OSError:
            pass

    async def _pump(self, wire: Wire, side: Side, source: socket.socket, target: socket.socket | None) -> None:
        frames = Frames(typed=side == "server")
        while chunk := await self._loop.sock_recv(source, CHUNK):
            messages = frames.feed(chunk)
            self._count(side, chunk, messages)
            if self._faults.delay:
                await self._hold_back()
            if wire.dead or target is None:
                continue
            onward = self._heard_client(wire, messages) if side == "client" else self._heard_server(wire, messages)
            await self._forward(side, onward, target)
            if side == "server" and wire.doomed is not None and wire.answered >= wire.doomed:
                self._break()
        if not wire.dead and target is not None:
            target.shutdown(socket.SHUT_WR)

    async def _hold_back(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._faults.delay):
                await self._faults.over.wait()

    def _heard_client(self, wire: Wire, messages: list[tuple[str, bytes]]) -> bytes:
        for kind, message in messages:
            if kind in ("Q", "S", "F"):
                wire.owed += 1
            if kind in ("Q", "P") and wire.doomed is None and self._take_unanswered(message):
                wire.doomed = wire.owed + (kind == "P")
        return b"".join(message for _, message in messages)

    def _take_unanswered(self, message: bytes) -> bool:
        for sql, times in self._faults.unanswered.items():
            if times > 0 and sql in message:
                self._faults.unanswered[sql] -= 1
                return True
        return False

    def _heard_server(self, wire: Wire, messages: list[tuple[str, bytes]]) -> bytes:
        onward = []
        for kind, message in messages:
            if wire.doomed is None or wire.answered < wire.doomed - 1:
                onward.append(message)
            wire.answered += kind == "Z"
        return b"".join(onward)

    async def _forward(self, side: Side, onward: bytes, target: socket.socket) -> None:
        left = self._faults.left.pop(side, None)
        if left is None:
            await self._loop.sock_sendall(target, onward)
        elif len(onward) < left:
            self._faults.left[side] = left - len(onward)
            await self._loop.sock_sendall(target, onward)
        else:
            await self._loop.sock_sendall(target, onward[:left])
            self._break()

    def _break(self) -> None:
        self._count_cuts(1)
        raise ConnectionResetError

    def _count(self, side: Side, chunk: bytes, messages: list[tuple[str, bytes]]) -> None:
        with self._changed:
            self._bytes[side] += len(chunk)
            if side == "server":
                self._messages.update(kind for kind, _ in messages)
            self._changed.notify_all()

    def _count_cuts(self, number: int) -> None:
        with self._changed:
            self._cuts += number
            self._changed.notify_all()
