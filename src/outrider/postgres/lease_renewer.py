"""The side process of a worker: renews its leases, so that a job that keeps the interpreter busy keeps its own.

A program of its own, started by its path: it imports nothing of Outrider and starts quickly. Its first line of input says
what to do; the input's end says that the worker is gone. Then its leases end at once, and so does this process. While the
worker is stopped (SIGSTOP) it renews nothing.
"""

import json
import mmap
import os
import select
import signal
import struct
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import psycopg

ALL = 1_000_000
LONGEST_PAUSE = 5.0
SECOND_LOOK = 2.0
PATIENCE = "10s"
"""What a statement may take."""
BYE = b"bye\n"


class Renewer:
    def __init__(self, told: dict[str, Any]) -> None:
        self.told = told
        self.params = {"worker": told["worker"], "names": told["names"]}
        self.conn: psycopg.Connection[Any] | None = None
        self.pooled = False
        self.pause = told["every"]

    def run(self) -> None:
        due = time.monotonic()
        while True:
            wait = max(0.0, due - time.monotonic())
            if select.select([0], [], [], wait)[0]:
                said = os.read(0, 4096)
                if BYE in said:
                    self.give_up([])
                    return
                if not said:
                    self.bury()
                    return
            if os.getppid() != self.told["parent"]:
                self.bury()
                return
            if time.monotonic() >= due:
                due = time.monotonic() + self.step()

    def step(self) -> float:
        """Renew once; the seconds until the next time."""
        if stopped(self.told["parent"]):
            return float(min(1.0, self.told["every"]))
        begun = time.monotonic()
        try:
            rows = self.ask(self.told["renew"], self.params)
        except psycopg.Error as error:
            self.close()
            self.say({"at": begun, "error": str(error).strip()})
            self.pause = min(LONGEST_PAUSE, self.told["every"], max(0.05, self.pause * 2))
            return float(self.pause)
        self.pause = 0.05
        self.say({"at": begun, "held": rows})
        return float(self.told["every"])

    def begun(self) -> list[int]:
        """The jobs that the worker was at: it left them in memory that outlives it."""
        with mmap.mmap(self.told["begun"], 0, prot=mmap.PROT_READ) as memory:
            return [job for (job,) in struct.iter_unpack("q", memory[:]) if job]

    def bury(self) -> None:
        """Twice: the server may have been at a claim of the worker's when it died, which lands later."""
        begun = self.begun()
        self.give_up(begun)
        self.close()
        time.sleep(SECOND_LOOK)
        self.give_up(begun)

    def give_up(self, begun: "list[int]") -> None:
        """The worker has ended: what it held is everybody's, and a crash is counted for what it was at."""
        for _ in range(5):
            try:
                self.ask(self.told["reap"], {**self.params, "limit": ALL, "begun": begun})
                return
            except psycopg.Error:
                self.close()
                time.sleep(0.2)

    def ask(self, statement: str, params: "dict[str, Any]") -> "list[Any]":
        conn = self.session()
        if not self.pooled:
            return conn.execute(statement, params).fetchall()
        with conn.transaction():
            conn.execute("select set_config('statement_timeout', %s, true)", [PATIENCE])
            return conn.execute(statement, params).fetchall()

    def session(self) -> "psycopg.Connection[Any]":
        if self.conn is None or self.conn.closed:
            self.conn = psycopg.connect(
                self.told["dsn"],
                autocommit=True,
                client_encoding="utf8",
                connect_timeout=10,
                fallback_application_name="outrider leases",
                tcp_user_timeout=10_000,
                keepalives_idle=10,
                keepalives_interval=2,
                keepalives_count=3,
            )
            self.settle_in(self.conn)
        return self.conn

    def settle_in(self, conn: "psycopg.Connection[Any]") -> None:
        """As postgres.connection does: settings of the role do not reach us, and ours nobody else behind a pooler."""
        pid = conn.info.backend_pid
        look = next(text for version, text in self.told["looks"] if conn.info.server_version >= version)
        row = conn.execute(look.replace("{pid}", str(pid)).encode()).fetchone()
        self.pooled = row is None or row[0] != pid
        if self.pooled:
            conn.prepare_threshold = None
        elif conn.info.parameter_status("default_transaction_read_only") == "on":
            conn.execute(self.told["writable"])

    def close(self) -> None:
        if self.conn is not None:
            self.conn.close()
            self.conn = None

    def say(self, report: dict[str, Any]) -> None:
        """A worker that does not listen must not hold up the renewals: what does not fit into the pipe is dropped."""
        line = json.dumps(report).encode() + b"\n"
        with suppress(BlockingIOError, BrokenPipeError):
            written = os.write(1, line)
            while written < len(line):
                if not select.select([], [1], [], 0.5)[1]:
                    os._exit(1)  # half a line is worse than none: the worker starts another
                written += os.write(1, line[written:])


def stopped(pid: int) -> bool:
    """Whether that process is stopped; nobody can tell where there is no /proc."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "Tt"
    except (OSError, IndexError):
        return False


def main() -> None:
    # Whoever stops the worker, by its terminal or its group, does not mean this process: the worker still needs it.
    for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(each, signal.SIG_IGN)
    line = b""
    while not line.endswith(b"\n"):
        piece = os.read(0, 1)
        if not piece:
            return
        line += piece
    os.set_blocking(1, False)
    Renewer(json.loads(line)).run()


if __name__ == "__main__":
    main()
