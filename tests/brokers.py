"""A redis-server or a nats-server of a test's own: on a free loopback port, its data in a temporary folder.

It ends with its `with` block and leaves nothing behind; until then it can be killed, paused, and restarted with or
without what it had stored, always on the same port.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import socket
import ssl
import subprocess
import tempfile
import time
from abc import ABC, abstractmethod
from pathlib import Path
from types import TracebackType
from typing import ClassVar, Self
from urllib.parse import quote

HOST = "127.0.0.1"
DEADLINE = 60.0
EMPTY = '""'
PORTS = (20_000, 32_000)
"""Below those that the system gives to clients, so that a server finds its port free again after a restart."""


class BrokerMissing(Exception):
    """The broker's program is not installed."""


class PortTaken(Exception):
    """Somebody else was faster."""


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def free_port() -> int:
    while True:
        port = random.randint(*PORTS)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((HOST, port))
            return port


class Certificate:
    """A key and a certificate for the loopback address, signed by itself: it is also what a client must trust."""

    def __init__(self, folder: Path) -> None:
        self.key, self.file = folder / "key.pem", folder / "certificate.pem"
        command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
        command += ["-days", "2", "-subj", "/CN=localhost", "-addext", f"subjectAltName=IP:{HOST},DNS:localhost"]
        command += ["-keyout", str(self.key), "-out", str(self.file)]
        subprocess.run(command, check=True, capture_output=True, timeout=DEADLINE)

    def context(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=self.file)


class Broker(ABC):
    program: ClassVar[str]
    package: ClassVar[str]
    schemes: ClassVar[tuple[str, str]]
    """Of the URL: without and with TLS."""

    def __init__(self, *, user: str | None = None, password: str | None = None, tls: bool = False) -> None:
        self.port = free_port()
        self.user, self.password, self.tls = user, password, tls
        self.certificate: Certificate | None = None
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.folder = Path(tempfile.mkdtemp(prefix=f"{self.program}-"))
        self.data.mkdir()
        try:
            if self.tls:
                self.certificate = Certificate(self.folder)
            while True:
                try:
                    self.start()
                    return self
                except PortTaken:
                    self.kill()
                    (self.folder / "log").unlink()
                    self.port = free_port()
        except BaseException:
            self.__exit__(None, None, None)
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.kill()
        finally:
            shutil.rmtree(self.folder, ignore_errors=True)

    @property
    def data(self) -> Path:
        return self.folder / "data"

    @property
    def url(self) -> str:
        """With user and password. What to trust, with TLS, is the parameter `ssl_ca_certs`."""
        trust = f"?ssl_ca_certs={quote(str(self.certificate.file))}" if self.certificate else ""
        return f"{self.schemes[self.tls]}://{self._who()}{HOST}:{self.port}{trust}"

    @property
    def pid(self) -> int:
        assert self._process is not None, "it does not run"
        return self._process.pid

    def start(self) -> None:
        """Start it and wait until it answers."""
        path = shutil.which(self.program) or shutil.which(self.program, path="/usr/sbin:/usr/local/sbin")
        if path is None:
            raise BrokerMissing(
                f"{self.program} is not installed and these tests need it: apt-get install {self.package} (Debian, "
                f"Ubuntu), brew install {self.program.replace('redis-server', 'redis')} (macOS), or put it on the PATH"
            )
        assert self._process is None, "it runs already"
        log = self.folder / "log"
        with log.open("ab") as out:
            self._process = subprocess.Popen([path, *self._arguments()], stdout=out, stderr=out, cwd=self.folder)
        deadline = time.monotonic() + DEADLINE
        while not self._answers() or self._process.poll() is not None:
            if self._process.poll() is not None or time.monotonic() > deadline:
                said = log.read_text()[-2000:]
                if "address already in use" in said.lower():
                    raise PortTaken(self.port)
                raise AssertionError(f"{self.program} does not start: {said}")
            time.sleep(0.01)

    def kill(self) -> None:
        """SIGKILL. Nothing happens when it does not run."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """SIGTERM, and wait for its end."""
        self._end(signal.SIGTERM)

    def pause(self) -> None:
        """SIGSTOP: connections stay open, and nobody answers."""
        assert self._process is not None, "it does not run"
        self._process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self._process.pid, os.WSTOPPED)  # until its last thread has stopped

    def resume(self) -> None:
        assert self._process is not None, "it does not run"
        self._process.send_signal(signal.SIGCONT)

    def restart(self, *, empty: bool = False) -> None:
        """Kill it if it runs, and start it on the same port; `empty` = without what it had stored."""
        self.kill()
        if empty:
            shutil.rmtree(self.data)
            self.data.mkdir()
        self.start()

    def _end(self, number: signal.Signals) -> None:
        if (process := self._process) is None:
            return
        process.send_signal(number)
        if number != signal.SIGKILL:
            process.send_signal(signal.SIGCONT)
        try:
            process.wait(DEADLINE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(DEADLINE)
            raise
        finally:
            if process.returncode is not None:  # else whoever ends the block tries again
                self._process = None

    def _who(self) -> str:
        if self.password is None:
            return ""
        return f"{quote(self.user or '', safe='')}:{quote(self.password, safe='')}@"

    @abstractmethod
    def _arguments(self) -> list[str]: ...

    @abstractmethod
    def _answers(self) -> bool: ...


class RedisServer(Broker):
    program, package, schemes = "redis-server", "redis-server", ("redis", "rediss")

    def __init__(
        self,
        *,
        durable: bool = True,
        user: str | None = None,
        password: str | None = None,
        tls: bool = False,
        settings: dict[str, str] | None = None,
    ) -> None:
        """`durable`: what was answered is on the disk; else all is lost with the process. `settings`: as in redis.conf."""
        super().__init__(user=user, password=password, tls=tls)
        self.durable, self.settings = durable, settings or {}

    def _arguments(self) -> list[str]:
        port = {"port": "0", "tls-port": str(self.port)} if self.tls else {"port": str(self.port)}
        kept = {"appendonly": "yes", "appendfsync": "always"} if self.durable else {"appendonly": "no"}
        settings = {"bind": HOST, **port, "dir": str(self.data), "save": "", **kept, **self.settings}
        if self.certificate:
            settings |= {"tls-cert-file": str(self.certificate.file), "tls-key-file": str(self.certificate.key)}
            settings |= {"tls-ca-cert-file": str(self.certificate.file), "tls-auth-clients": "no"}
        if self.password is not None and self.user:
            settings |= {"user": f"{self.user} on >{self.password} ~* &* +@all"}
        elif self.password is not None:
            settings |= {"requirepass": self.password}
        # In a file: a password must not be seen in the list of processes.
        file = self.folder / "redis.conf"
        lines = [f"{name} {value or EMPTY}" for name, value in settings.items()]
        if self.password is not None and self.user:
            lines.append("user default off")
        file.write_text("\n".join(lines) + "\n")
        return [str(file)]

    def _answers(self) -> bool:
        """Any answer but that it is still loading: one that wants a password is up."""
        try:
            with socket.create_connection((HOST, self.port), 1) as raw:
                wire = self.certificate.context().wrap_socket(raw, server_hostname=HOST) if self.certificate else raw
                wire.sendall(b"PING\r\n")
                answer = wire.recv(100)
                wire.close()
        except OSError:
            return False
        return answer.startswith((b"+PONG", b"-NOAUTH"))


class NatsServer(Broker):
    program, package, schemes = "nats-server", "nats-server", ("nats", "tls")

    def __init__(
        self,
        *,
        user: str | None = None,
        password: str | None = None,
        tls: bool = False,
        max_payload: int = 1024 * 1024,
        jetstream: bool = True,
        settings: str = "",
    ) -> None:
        """`settings`: further lines of its configuration file. A password without a user is a token."""
        super().__init__(user=user, password=password, tls=tls)
        self.max_payload, self.jetstream, self.settings = max_payload, jetstream, settings

    def _arguments(self) -> list[str]:
        lines = [
            f"listen: {HOST}:{self.port}",
            f"max_payload: {self.max_payload}",
            f'jetstream {{ store_dir: "{self.data}" }}' if self.jetstream else "",
            self.settings,
        ]
        if self.password is not None and self.user:
            who = f"user: {_quoted(self.user)}, password: {_quoted(self.password)}"
            lines.append(f"authorization {{ {who} }}")
        elif self.password is not None:
            lines.append(f"authorization {{ token: {_quoted(self.password)} }}")
        if self.certificate:
            lines.append(f'tls {{ cert_file: "{self.certificate.file}", key_file: "{self.certificate.key}" }}')
        file = self.folder / "nats.conf"
        file.write_text("\n".join(lines) + "\n")
        return ["-c", str(file)]

    def _who(self) -> str:
        if self.password is not None and not self.user:
            return f"{quote(self.password, safe='')}@"
        return super()._who()

    def _answers(self) -> bool:
        """It greets whoever connects, TLS or not, once JetStream has recovered what it had stored."""
        try:
            with socket.create_connection((HOST, self.port), 1) as wire:
                wire.settimeout(1)
                return wire.recv(4096).startswith(b"INFO ")
        except OSError:
            return False
