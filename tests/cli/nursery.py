"""Processes of `outrider` that need not import it: forked from one that has, which saves a second of CPU for each.

They are real ones, with a folder, an environment and streams of their own. What ends by a signal is started the long way.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from outrider.cli import main

LONGEST = 60.0


class Nursery:
    def __init__(self) -> None:
        self._ours, theirs = socket.socketpair()
        self._ours.settimeout(LONGEST)
        with theirs:
            command = [sys.executable, "-P", str(Path(__file__)), str(theirs.fileno())]
            self._process = subprocess.Popen(command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL)

    def run(self, arguments: Sequence[str], cwd: Path, env: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
        asked = json.dumps({"arguments": list(arguments), "cwd": str(cwd), "env": dict(env)}).encode()
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            socket.send_fds(self._ours, [len(asked).to_bytes(4)], [out.fileno(), err.fileno()])
            self._ours.sendall(asked)
            try:
                code = int.from_bytes(self._ours.recv(4), signed=True)
            except TimeoutError:
                self.close()
                raise
            said = [os.pread(each.fileno(), os.fstat(each.fileno()).st_size, 0).decode() for each in (out, err)]
        return subprocess.CompletedProcess(arguments, code, *said)

    def close(self) -> None:
        self._ours.close()
        self._process.kill()
        self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def breed(wire: socket.socket) -> None:
    """In the process that has imported everything: one child for each request, one after the other."""
    while True:
        size, streams, _, _ = socket.recv_fds(wire, 4, 2)
        if not size:
            return
        text, left = b"", int.from_bytes(size)
        while len(text) < left:
            text += wire.recv(left - len(text))
        if (child := os.fork()) == 0:
            wire.close()
            _be(json.loads(text), streams)
        for each in streams:
            os.close(each)
        _, status = os.waitpid(child, 0)
        wire.sendall(os.waitstatus_to_exitcode(status).to_bytes(4, signed=True))


def _be(asked: Any, streams: Sequence[int]) -> None:
    """Does not return."""
    code = 1
    try:
        for number, each in enumerate(streams, start=1):
            os.dup2(each, number)
            os.close(each)
        os.environ.clear()
        os.environ.update(asked["env"])
        time.tzset()
        os.chdir(asked["cwd"])
        sys.argv = ["outrider", *asked["arguments"]]
        main()
        code = 0
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
        if isinstance(ended.code, str):
            print(ended.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    breed(socket.socket(fileno=int(sys.argv[1])))
