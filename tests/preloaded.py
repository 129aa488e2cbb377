"""Python programs that start at once: forked from a process that has already imported what they need.

Importing Outrider and the libraries around it costs about a second of CPU for each program. These are real processes
all the same: each has its own folder, environment, streams and exit code. A program that a test signals or talks to
while it runs is started with tests.processes instead.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib
import json
import os
import runpy
import shlex
import socket
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import typer.main

LONGEST = 170.0
"""Seconds that a program may take."""
IMPORTED = ("outrider.cli", "outrider.testing", "sqlalchemy.ext.asyncio", "alembic.config")
PYTHON = ("python", "python3", sys.executable)


class Preloaded:
    """`with Preloaded() as preloaded: preloaded.run(["outrider", "status"], folder, environment)`"""

    def __init__(self) -> None:
        self._ours, theirs = socket.socketpair()
        self._ours.settimeout(LONGEST)
        with theirs:
            command = [sys.executable, "-P", str(Path(__file__)), str(theirs.fileno())]
            self._process = subprocess.Popen(command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL)

    def run(self, command: Sequence[str], cwd: Path, env: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
        """Run `outrider …` or `python …`."""
        request = json.dumps({"command": list(command), "cwd": str(cwd), "env": dict(env)}).encode()
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            socket.send_fds(self._ours, [len(request).to_bytes(4)], [out.fileno(), err.fileno()])
            self._ours.sendall(request)
            try:
                code = int.from_bytes(self._ours.recv(4), signed=True)
            except TimeoutError:
                self.close()
                raise
            said = [os.pread(each.fileno(), os.fstat(each.fileno()).st_size, 0).decode() for each in (out, err)]
        return subprocess.CompletedProcess(command, code, *said)

    def shell(self, line: str, cwd: Path, env: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
        """Run a line as /bin/sh would; Python and Outrider, where nothing is left for a shell to do, without one.

        pytest is run by a shell: it warns when what it would rewrite has been imported.
        """
        words = shlex.split(line)
        plain = words[0] in ("outrider", *PYTHON) and not set(line) & set("|&;<>$`*?~")
        if plain and words[1:3] != ["-m", "pytest"]:
            return self.run(words, cwd, env)
        return subprocess.run(
            ["/bin/sh", "-c", line], cwd=cwd, env=env, capture_output=True, text=True, timeout=LONGEST, check=False,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip

    def close(self) -> None:
        self._ours.close()
        self._process.kill()
        self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def serve(wire: socket.socket) -> None:
    """In the process that has imported everything: one child for each request, one after the other."""
    for name in IMPORTED:
        importlib.import_module(name)
    # To build all commands takes longer than to run one.
    typer.main.get_command = functools.cache(typer.main.get_command)
    top: Any = typer.main.get_command(importlib.import_module("outrider.cli.main").cli)
    for name in top.list_commands(None):
        top.get_command(None, name)
    gc.freeze()
    while True:
        size, streams, _, _ = socket.recv_fds(wire, 4, 2)
        if not size:
            return
        text, left = b"", int.from_bytes(size)
        while len(text) < left:
            text += wire.recv(left - len(text))
        if (child := os.fork()) == 0:
            wire.close()
            _become(json.loads(text), streams)
        for each in streams:
            os.close(each)
        _, status = os.waitpid(child, 0)
        wire.sendall(os.waitstatus_to_exitcode(status).to_bytes(4, signed=True))


def _become(request: Any, streams: Sequence[int]) -> None:
    """Does not return."""
    code = 1
    try:
        for number, each in enumerate(streams, start=1):
            os.dup2(each, number)
            os.close(each)
        os.environ.clear()
        os.environ.update(request["env"])
        time.tzset()
        os.chdir(request["cwd"])
        _execute(request["command"])
        code = 0
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
        if isinstance(ended.code, str):
            print(ended.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(BaseException):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def _execute(command: Sequence[str]) -> None:
    paths = os.environ.get("PYTHONPATH", "")
    sys.path[:0] = [each for each in paths.split(os.pathsep) if each]
    match command:
        case ["outrider", *arguments]:
            sys.argv = ["outrider", *arguments]
            importlib.import_module("outrider.cli").main()
        case [_, "-m", module, *arguments]:
            sys.argv, sys.path[:0] = [module, *arguments], [str(Path.cwd())]
            runpy.run_module(module, run_name="__main__", alter_sys=True)
        case [_, "-c", code, *arguments]:
            sys.argv, sys.path[:0] = ["-c", *arguments], [""]
            exec(compile(code, "<string>", "exec"), {"__name__": "__main__"})
        case [_, script, *arguments]:
            sys.argv, sys.path[:0] = [script, *arguments], [str(Path(script).resolve().parent)]
            runpy.run_path(script, run_name="__main__")


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])))
