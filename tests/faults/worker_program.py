"""A program that forks workers on demand: importing once makes a worker that is born and dies in milliseconds.

It listens on the socket that its argument names, and forks a nursery for each connection. A nursery reads its environment
as a JSON line, then one JSON line per worker: {"dsn", "outside", "subject", "fail"}, where the subject is a module, or
a function in one that makes the app ("module:function"); answers {"born": pid} and, when
it has ended, {"died": pid, "code": exit code, negative for a signal}. At the end of its input it kills all that still
live.
"""

from __future__ import annotations

import asyncio
import gc
import importlib
import json
import os
import select
import signal
import socket
import sys
import traceback
from pathlib import Path
from typing import Any

from tests.faults import subject

from outrider import failpoint


async def work(task: dict[str, Any]) -> None:
    module, _, name = task["subject"].partition(":")
    found = importlib.import_module(module)
    async with getattr(found, name or "make")(task["dsn"], Path(task["outside"])) as app:
        worker = getattr(found, "worker_of", subject.worker_of)(app)
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, worker.stop)
        await worker.run()


def live(task: dict[str, Any]) -> None:
    """Never returns: the child of a fork must not go on in its parent's place."""
    code = 1
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        failpoint.load({"OUTRIDER_FAIL": task["fail"]})
        asyncio.run(work(task))
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def tell(**fact: int) -> None:
    sys.stdout.write(json.dumps(fact) + "\n")
    sys.stdout.flush()


def bury_dead() -> list[int]:
    dead: list[int] = []
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return dead
        if pid == 0:
            return dead
        dead.append(pid)
        tell(died=pid, code=os.waitstatus_to_exitcode(status))


def serve(path: str) -> None:
    gc.collect()
    gc.freeze()  # else the first full collection of a child unshares all that was imported: memory that is no growth
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"{path}.new")
        listener.listen()
        Path(f"{path}.new").rename(path)  # only now can it be connected to
        while True:
            wire, _ = listener.accept()
            with wire:
                if os.fork() == 0:
                    listener.close()
                    os.dup2(wire.fileno(), 0)
                    os.dup2(wire.fileno(), 1)
                    wire.close()
                    try:
                        main()
                    finally:
                        os._exit(0)


def main() -> None:
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    alive: set[int] = set()
    rest = b""
    while True:
        ready, _, _ = select.select([0, woken], [], [])
        if woken in ready:
            os.read(woken, 512)
            alive -= set(bury_dead())
        if 0 in ready:
            chunk = os.read(0, 65536)
            if not chunk:
                break
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                task = json.loads(line)
                if "environment" in task:
                    os.environ.clear()
                    os.environ.update(task["environment"])
                    continue
                importlib.import_module(task["subject"].partition(":")[0])
                if (pid := os.fork()) == 0:
                    live(task)
                alive.add(pid)
                tell(born=pid)
    for pid in alive:
        os.kill(pid, signal.SIGKILL)
    while alive:
        alive -= {os.wait()[0]}


if __name__ == "__main__":
    serve(sys.argv[1])
