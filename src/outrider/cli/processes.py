"""Several worker processes: the parent starts them, restarts them when they end, and stops them."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from asyncio.subprocess import DEVNULL, Process
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

import typer

from outrider.cli.shutdown import HURRY, leave, obeying

FIRST_PAUSE, LONGEST_PAUSE = 1.0, 30.0
STEADY = 60.0
"""Seconds after which a process counts as steady: the pause before its restart is short again."""
MARGIN = 20.0
"""Seconds after the grace time until the processes are killed; they keep the grace time themselves."""
HURRIED = 5.0
"""Seconds after the second signal until the processes are killed; normally they end before that."""


@dataclass(slots=True)
class ProcessSlot:
    number: int
    process: Process | None = None
    restarts: int = 0


class WorkerProcesses:
    def __init__(
        self, command: Callable[[int], Sequence[str]], environment: Mapping[str, str], count: int, grace: float
    ) -> None:
        self._command = command
        self._environment = os.environ | environment
        self._slots = [ProcessSlot(number) for number in range(1, count + 1)]
        self._grace = grace
        self.hurried: int | None = None
        """The second signal."""
        self._stopping = asyncio.Event()
        self._clock = asyncio.get_running_loop().time
        self._since = self._clock()

    async def run(self) -> bool:
        """Runs until a signal. True when every process has finished what it had begun."""
        with obeying(self._stop, self._again):
            keepers = [asyncio.create_task(self._keep(slot)) for slot in self._slots]
            stopping = asyncio.create_task(self._stopping.wait())
            try:
                await asyncio.wait([stopping, *keepers], return_when=asyncio.FIRST_COMPLETED)
                await asyncio.wait(keepers, timeout=self._grace + MARGIN)
            finally:
                self._stopping.set()
                self._send(signal.SIGKILL)
                results = await asyncio.gather(*keepers)
                stopping.cancel()
            return all(results)

    async def _keep(self, slot: ProcessSlot) -> bool:
        """Keeps one process running. True when the last one ended cleanly."""
        pause = FIRST_PAUSE
        while not self._stopping.is_set():
            begun = self._clock()
            code, said = await self._one(slot)
            if self._stopping.is_set():
                return code in (0, -signal.SIGTERM)  # killed by SIGTERM: it had not begun anything
            pause = FIRST_PAUSE if self._clock() - begun >= STEADY else pause
            typer.echo(f"outrider: process {slot.number} {said}; it is restarted in {pause:g} s", err=True)
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), pause)
            pause = min(2 * pause, LONGEST_PAUSE)
            slot.restarts += 1
        return True

    async def _one(self, slot: ProcessSlot) -> tuple[int, str]:
        """Runs one process. Returns its exit code, and a sentence about it."""
        try:
            # In its own process group: a terminal sends Ctrl-C to the whole group, and we pass it on.
            process = await asyncio.create_subprocess_exec(
                *self._command(slot.number),
                *("--parent", str(os.getpid())),
                stdin=DEVNULL,
                process_group=0,
                env=self._environment,
            )
        except OSError as error:
            return 1, f"could not be started ({error.strerror or error})"
        slot.process = process
        if self._stopping.is_set():
            process.terminate()
        code = await process.wait()
        slot.process = None
        how = f"ended with code {code}" if code >= 0 else f"was killed by {signal.Signals(-code).name}"
        return code, f"(pid {process.pid}) {how}"

    def _stop(self) -> None:
        self._stopping.set()
        self._send(signal.SIGTERM)

    def _again(self, number: int) -> None:
        if self.hurried is not None:
            self._leave(number)
        self.hurried = number
        self._send(HURRY)
        timer = threading.Timer(HURRIED, self._leave, [number])
        timer.daemon = True
        timer.start()

    def _leave(self, number: int) -> None:
        self._send(signal.SIGKILL)
        leave(number)

    def _send(self, number: int) -> None:
        for slot in self._slots:
            if slot.process is not None:
                with suppress(ProcessLookupError):
                    slot.process.send_signal(number)

    # The health of all processes: see worker.health.Subject

    def unready(self) -> str | None:
        down = [str(slot.number) for slot in self._slots if slot.process is None]
        if self._stopping.is_set():
            return "stopping"
        return f"not running: process {', '.join(down)}" if down else None

    def facts(self) -> dict[str, object]:
        return {
            "processes": [
                {"number": slot.number, "pid": slot.process and slot.process.pid, "restarts": slot.restarts}
                for slot in self._slots
            ],
            "uptime": round(self._clock() - self._since, 3),
        }
