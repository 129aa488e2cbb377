"""A process beside the worker that renews its leases, even while a job keeps the worker's interpreter busy.

It is started by its path and imports nothing of Outrider, so it starts quickly. The first line of its input is its
configuration. The end of the input means that the worker is gone: then it releases the leases and exits. While the worker
is stopped (SIGSTOP), it renews nothing.
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
"""The longest pause between retries after an error, in seconds."""
SECOND_LOOK = 2.0
"""Seconds until the leases of a dead worker are released again."""
PATIENCE = "10s"
"""The statement_timeout."""
BYE = b"bye\n"


class Renewer:
    def __init__(self, config: dict[str, Any]) -> None:
        self.config = config
        self.params = {"worker": config["worker"], "names": config["names"]}
        self.conn: psycopg.Connection[Any] | None = None
        self.pooled = False
        self.pause = config["every"]

    def run(self) -> None:
        due = time.monotonic()
        while True:
            wait = max(0.0, due - time.monotonic())
            if select.select([0], [], [], wait)[0]:
                received = os.read(0, 4096)
                if BYE in received:
                    self.release([])
                    return
                if not received:
                    self.release_twice()
                    return
            if os.getppid() != self.config["parent"]:
                self.release_twice()
                return
            if time.monotonic() >= due:
                due = time.monotonic() + self.step()

    def step(self) -> float:
        """Renews once; returns the seconds until the next renewal."""
        if stopped(self.config["parent"]):
            return float(min(1.0, self.config["every"]))
        begun = time.monotonic()
        try:
            rows = self.ask(self.config["renew"], self.params)
        except psycopg.Error as error:
            self.close()
            self.say({"at": begun, "error": str(error).strip()})
            self.pause = min(LONGEST_PAUSE, self.config["every"], max(0.05, self.pause * 2))
            return float(self.pause)
        self.pause = 0.05
        self.say({"at": begun, "held": rows})
        return float(self.config["every"])

    def begun(self) -> list[int]:
        """The jobs that the worker was running, from shared memory that outlives it."""
        with mmap.mmap(self.config["begun"], 0, prot=mmap.PROT_READ) as memory:
            return [job for (job,) in struct.iter_unpack("q", memory[:]) if job]

    def release_twice(self) -> None:
        """A claim that the server was executing when the worker died may commit after the first time."""
        begun = self.begun()
        self.release(begun)
        self.close()
        time.sleep(SECOND_LOOK)
        self.release(begun)

    def release(self, begun: "list[int]") -> None:
        """Releases the worker's leases, and counts a crash for the jobs in `begun`."""
        for _ in range(5):
            try:
                self.ask(self.config["reap"], {**self.params, "limit": ALL, "begun": begun})
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
                self.config["dsn"],
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
        """Pins the settings as postgres.connection does. Behind a pooler, they must not reach other clients."""
        pid = conn.info.backend_pid
        look = next(text for version, text in self.config["looks"] if conn.info.server_version >= version)
        row = conn.execute(look.replace("{pid}", str(pid)).encode()).fetchone()
        self.pooled = row is None or row[0] != pid
        if self.pooled:
            conn.prepare_threshold = None
        elif conn.info.parameter_status("default_transaction_read_only") == "on":
            conn.execute(self.config["writable"])

    def close(self) -> None:
        if self.conn is not None:
            self.conn.close()
            self.conn = None

    def say(self, report: dict[str, Any]) -> None:
        """Drops what does not fit into the pipe: a worker that does not read must not hold up the renewals."""
        line = json.dumps(report).encode() + b"\n"
        with suppress(BlockingIOError, BrokenPipeError):
            written = os.write(1, line)
            while written < len(line):
                if not select.select([], [1], [], 0.5)[1]:
                    os._exit(1)  # half a line is worse than none; the worker starts a new process
                written += os.write(1, line[written:])


def stopped(pid: int) -> bool:
    """Whether the process is stopped by a signal. False if there is no /proc."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "Tt"
    except (OSError, IndexError):
        return False


def main() -> None:
    # A signal to the worker's terminal or process group also reaches this process, which the worker needs until it ends.
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
