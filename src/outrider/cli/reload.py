"""A worker process that is replaced when the code changes: the part of `outrider dev` that runs your code."""

from __future__ import annotations

import asyncio
import os
import signal
import traceback
from asyncio.subprocess import DEVNULL, PIPE, STDOUT, Process
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import outrider
from outrider.cli.shutdown import HURRY

Tell = Callable[[str, str], None]
"""Prints a text of one part: "worker", "dashboard" and so on."""

POLL = 0.25
"""Seconds between two looks at the files."""
SKIPPED = {"__pycache__", "node_modules", "site-packages"}
MARGIN = 3.0
"""Seconds after the grace time until the process is killed; it keeps the grace time itself."""
LAST_WORDS = 1.0
"""Seconds to wait for the rest of the output of a process that has ended: its own children may hold the pipe."""
UP = b"worker_up"
_PACKAGE = str(Path(outrider.__file__).parent)


def python_files(folders: Iterable[Path]) -> dict[str, tuple[int, int]]:
    """Path, time of the last change and size of every Python file, without hidden folders and virtual environments."""
    found: dict[str, tuple[int, int]] = {}
    waiting = [str(each) for each in folders]
    while waiting:
        with suppress(OSError), os.scandir(waiting.pop()) as listing:
            for entry in listing:
                with suppress(OSError):  # a file that was removed meanwhile
                    if entry.is_dir(follow_symlinks=False):
                        if not _skipped(entry):
                            waiting.append(entry.path)
                    elif entry.name.endswith(".py"):
                        seen = entry.stat()
                        found[entry.path] = seen.st_mtime_ns, seen.st_size
    return found


def _skipped(folder: os.DirEntry[str]) -> bool:
    return folder.name.startswith(".") or folder.name in SKIPPED or Path(folder.path, "pyvenv.cfg").exists()


async def changes(folders: Sequence[Path], before: dict[str, tuple[int, int]]) -> AsyncIterator[list[str]]:
    """Yields the files that have changed since `before`, when nothing has changed for one more look."""
    while True:
        await asyncio.sleep(POLL)
        now = await asyncio.to_thread(python_files, folders)
        if now == before:
            continue
        while True:
            await asyncio.sleep(POLL)
            later = await asyncio.to_thread(python_files, folders)
            if later == now:
                break
            now = later
        changed = sorted({path for path, _ in before.items() ^ now.items()})
        before = now
        if changed:
            yield changed


class ReloadedWorker:
    """Runs the command again after each change. A process that has ended by itself stays away until the next change."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], grace: float, tell: Tell) -> None:
        self._command = command
        # A .pyc file knows the second of the last change only: of two changes within a second, the first would run.
        self._environment = {**os.environ, **environment, "PYTHONUNBUFFERED": "1", "PYTHONDONTWRITEBYTECODE": "1"}
        self._grace = grace
        self._tell = tell
        self._process: Process | None = None
        self._changed = asyncio.Event()
        self._stop = asyncio.Event()
        self.settled = asyncio.Event()
        """The first process has registered its subscriptions, or has ended."""

    @property
    def running(self) -> bool:
        return self._process is not None

    def replace(self) -> None:
        self._changed.set()

    def stop(self) -> None:
        self._stop.set()

    def hurry(self) -> None:
        self._send(HURRY)

    def kill(self) -> None:
        self._send(signal.SIGKILL)

    async def run(self) -> None:
        """Until `stop`. No process outlives this call."""
        while not self._stop.is_set():
            self._changed.clear()
            await self._run_once()

    async def _run_once(self) -> None:
        # In its own process group: a terminal sends Ctrl-C to the whole group, and we pass it on.
        process = await asyncio.create_subprocess_exec(
            *self._command,
            *("--parent", str(os.getpid())),
            stdin=DEVNULL,
            stdout=PIPE,
            stderr=STDOUT,
            process_group=0,
            env=self._environment,
        )
        self._process = process
        output = asyncio.create_task(self._pass_on(process))
        ended = asyncio.create_task(process.wait())
        try:
            await self._interrupted(ended)
            if not ended.done():
                self._send(signal.SIGTERM)
                await asyncio.wait([ended], timeout=self._grace + MARGIN)
        finally:
            self._send(signal.SIGKILL)
            code = await ended
            self._process = None
            await asyncio.wait([output], timeout=LAST_WORDS)
            output.cancel()
            self.settled.set()
        if not self._stop.is_set() and not self._changed.is_set():
            how = f"ended with code {code}" if code >= 0 else f"was killed by {signal.Signals(-code).name}"
            self._tell("dev", f"the worker {how}; it starts again when the code changes")
            await self._interrupted()

    async def _interrupted(self, *others: asyncio.Task[int]) -> None:
        """Until a change, the end of all, or one of the others."""
        waits = [asyncio.create_task(each.wait()) for each in (self._changed, self._stop)]
        try:
            await asyncio.wait([*waits, *others], return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in waits:
                each.cancel()

    async def _pass_on(self, process: Process) -> None:
        assert process.stdout is not None
        rest = b""
        while read := await process.stdout.read(65536):
            *lines, rest = (rest + read).split(b"\n")
            for line in lines:
                self._tell("worker", line.decode(errors="replace").rstrip("\r"))
                if UP in line:
                    self.settled.set()
        if rest:
            self._tell("worker", rest.decode(errors="replace"))

    def _send(self, number: int) -> None:
        if self._process is not None:
            with suppress(ProcessLookupError):
                self._process.send_signal(number)


def own_traceback(error: BaseException) -> str:
    """The traceback without the lines of Outrider and of the import system."""
    shown = traceback.TracebackException.from_exception(error)
    hidden = (_PACKAGE, "<frozen importlib", os.path.dirname(os.__file__) + "/importlib")  # noqa: PTH120
    shown.stack = traceback.StackSummary.from_list(
        [each for each in shown.stack if not each.filename.startswith(hidden)]
    )
    return "".join(shown.format(chain=False)).rstrip()
