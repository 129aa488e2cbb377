"""Folders and user processes for the tests of the embedded server. Each folder is checked for what is left behind."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from outrider.postgres.embedded.account import Account, server_account
from outrider.postgres.embedded.binaries import VARIABLE

USER = """
import sys
from outrider.postgres.embedded import Embedded
server = Embedded(sys.argv[1]) if sys.argv[1] else Embedded.temporary()
server.start()
print(server.pid, server.home, flush=True)
sys.stdin.read()
if sys.argv[2] == "stop":
    server.stop()
"""


@dataclass
class User:
    """A process that uses the server until it is told to leave."""

    process: subprocess.Popen[str]
    postmaster: psutil.Process
    home: Path

    @property
    def supervisor(self) -> psutil.Process:
        return supervisor(self.home)

    def leave(self) -> None:
        self.process.communicate(timeout=200)
        assert self.process.returncode == 0

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate(timeout=200)


def supervisor(home: Path) -> psutil.Process:
    return psutil.Process(int((home / "supervisor.lock").read_text()))


def ended(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    return True


def await_ended(process: psutil.Process) -> None:
    deadline = time.monotonic() + 60
    while not ended(process):
        assert time.monotonic() < deadline, f"{process} is still there"
        time.sleep(0.01)


def processes_of(folder: Path) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if str(folder) in " ".join(process.cmdline()) and not ended(process):
                found.append(process)
    return found


@pytest.fixture(scope="session")
def account() -> Account:
    return server_account()


@contextlib.contextmanager
def public_folder() -> Iterator[Path]:
    """A short folder that everybody can reach, unlike pytest's tmp_path."""
    folder = Path(tempfile.mkdtemp(prefix="outrider-test-")).resolve()
    folder.chmod(0o755)
    mask = os.umask(0o022)
    try:
        yield folder
        left = processes_of(folder)
        assert not left, f"left behind: {left}"
    finally:
        os.umask(mask)
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def place() -> Iterator[Path]:
    with public_folder() as folder:
        yield folder


@pytest.fixture(scope="module")
def project() -> Iterator[Path]:
    """One folder for the tests of a module, so that initdb runs once; each test leaves its server stopped."""
    with public_folder() as folder:
        yield folder / "pg"


Arrive = Callable[..., User]


@pytest.fixture
def begin() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    processes = []

    def start(folder: Path | None, ending: str = "stop") -> subprocess.Popen[str]:
        command = [sys.executable, "-c", USER, str(folder or ""), ending]
        bare = {"PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join(sys.path), "TMPDIR": tempfile.gettempdir()}
        bare |= {VARIABLE: os.environ[VARIABLE]} if VARIABLE in os.environ else {}
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=bare)
        processes.append(process)
        return process

    yield start
    for process in processes:
        process.kill()
        process.communicate()


@pytest.fixture
def arrive(begin: Callable[..., subprocess.Popen[str]]) -> Arrive:
    def wait(process: subprocess.Popen[str]) -> User:
        assert process.stdout is not None
        pid, home = process.stdout.readline().split(maxsplit=1)
        return User(process, psutil.Process(int(pid)), Path(home.rstrip("\n")))

    def start(folder: Path | None = None, ending: str = "stop", process: subprocess.Popen[str] | None = None) -> User:
        return wait(process or begin(folder, ending))

    return start
