"""`outrider worker` as a process: it handles, drains, leaves, comes back, multiplies, and says what is wrong.

Handlers block on advisory locks that the test holds, so that everything waits for conditions and nothing for the clock.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import psycopg
import pytest
from tests.cli.conftest import Run, Start
from tests.processes import PAUSE, until

from outrider.cli import shutdown

APP = """
import os, time
from outrider import Event, Outrider

class Placed(Event, type="cli.worked"):
    n: int

app = Outrider(context="shop", pool_size=2)

@app.handler(Placed, name="shop.count", start="beginning", partitions=2)
async def count(event, ctx):
    await ctx.tx.execute("insert into effect values (%s, %s)", [event.n, os.getpid()])
    if event.n >= 100:
        await ctx.tx.execute("select pg_advisory_xact_lock(%s)", [event.n])
"""
BLOCKING = (
    APP
    + """
@app.handler(Placed, name="shop.block", start="beginning")
async def block(event):
    print("blocking", flush=True)
    while True:
        time.sleep(0.05)  # not one long sleep: it does not end for a signal that arrived just before it
"""
)
JOB = (
    APP
    + """
from outrider import Job

class Fold(Job, type="shop.fold"):
    block: bool = False

@app.job(Fold, lease="1m")
async def fold(job):
    print("folding", flush=True)
    while job.block:
        time.sleep(0.05)
    await asyncio.sleep(600)
"""
).replace("import os, time", "import asyncio, os, time")
DEADLINE = 120


class Desk:
    """The database as the test sees it, and the worker's folder."""

    def __init__(self, conn: psycopg.Connection[Any], dsn: str, folder: Path, start: Start) -> None:
        self.conn = conn
        self.dsn = dsn
        self.folder = folder
        self._start = start

    def worker(self, *options: str) -> subprocess.Popen[str]:
        return self._start("worker", "--app", "shop:app", "--dsn", self.dsn, *options)

    def publish(self, *numbers: int) -> None:
        for n in numbers:
            self.conn.execute("select outrider.publish('cli.worked', %s::jsonb)", [json.dumps({"n": n})])

    def effects(self) -> list[int]:
        return [n for (n,) in self.conn.execute("select n from effect order by n").fetchall()]

    def workers(self) -> set[int]:
        return {pid for (pid,) in self.conn.execute("select pid from outrider.worker").fetchall()}

    def stuck(self) -> bool:
        query = """select exists (select from pg_locks join pg_database as d on d.oid = pg_locks.database
                   where locktype = 'advisory' and not granted and d.datname = current_database())"""
        return self.conn.execute(query).fetchone() == (True,)

    @contextmanager
    def locked(self, n: int) -> Iterator[None]:
        """The handler of this event waits until the block ends."""
        with psycopg.connect(self.dsn, autocommit=True) as other:
            other.execute("select pg_advisory_lock(%s)", [n])
            yield


@pytest.fixture
def desk(database: str, tmp_path: Path, start: Start) -> Iterator[Desk]:
    (tmp_path / "shop.py").write_text(APP)
    with psycopg.connect(database, autocommit=True) as conn:
        conn.execute("create table effect (n int, pid int)")
        yield Desk(conn, database, tmp_path, start)


def end(process: subprocess.Popen[str]) -> tuple[int, str]:
    _, err = process.communicate(timeout=DEADLINE)
    return process.returncode, err


def ask(url: str) -> tuple[int, dict[str, Any]]:
    try:
        with urllib.request.urlopen(url, timeout=DEADLINE) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as refused:
        with refused:
            return refused.code, json.load(refused)


def health_of(process: subprocess.Popen[str]) -> str:
    """Where it says that it answers."""
    assert process.stderr is not None
    for line in process.stderr:
        if "health at " in line:
            return line.strip().rpartition(" ")[2].removesuffix("/healthz")
    raise AssertionError("it said nothing of its health")


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.verify)])
def test_it_handles_until_it_is_told_to_stop(desk: Desk, number: signal.Signals) -> None:
    process = desk.worker()
    desk.publish(1, 2)
    until(lambda: desk.effects() == [1, 2], process)
    desk.publish(3)
    until(lambda: desk.effects() == [1, 2, 3], process)
    until(lambda: desk.workers() == {process.pid}, process)
    process.send_signal(number)
    code, err = end(process)
    assert code == 0, err
    assert re.search(r"INFO event=summary handler_name=\S+ handled=", err)
    assert "clean=true" in err.lower()
    assert desk.workers() == set()


@pytest.mark.verify
def test_a_stop_lets_the_running_handler_finish(desk: Desk) -> None:
    with desk.locked(100):
        process = desk.worker("--health-port", "0")
        url = health_of(process)
        desk.publish(1, 100)
        until(desk.stuck, process)
        process.send_signal(signal.SIGTERM)
        until(lambda: ask(f"{url}/readyz")[1].get("reason") == "stopping", process)
        assert ask(f"{url}/healthz")[0] == 200
        assert desk.stuck()
    code, err = end(process)
    assert (code, desk.effects()) == (0, [1, 100]), err


@pytest.mark.verify
def test_the_second_signal_leaves_at_once_and_nothing_is_lost(desk: Desk) -> None:
    with desk.locked(100):
        process = desk.worker("--health-port", "0")
        url = health_of(process)
        desk.publish(1, 2, 100)
        until(desk.stuck, process)
        process.send_signal(signal.SIGTERM)
        until(lambda: ask(f"{url}/readyz")[1].get("reason") == "stopping", process)
        process.send_signal(signal.SIGTERM)
        code, _ = end(process)
        assert code == 128 + signal.SIGTERM
    again = desk.worker()
    until(lambda: desk.effects() == [1, 2, 100], again)
    again.terminate()
    assert end(again)[0] == 0
    assert desk.effects() == [1, 2, 100]


@pytest.mark.verify
def test_the_second_signal_leaves_also_when_a_handler_blocks_the_loop(desk: Desk) -> None:
    (desk.folder / "shop.py").write_text(BLOCKING)
    process = desk.worker("--handlers", "shop.block")
    desk.publish(1)
    assert process.stdout is not None
    assert process.stdout.readline() == "blocking\n"
    process.send_signal(signal.SIGTERM)
    process.send_signal(signal.SIGINT)
    assert end(process)[0] in (128 + signal.SIGINT, 128 + signal.SIGTERM)


class Folding:
    """A worker in the midst of a job."""

    def __init__(self, desk: Desk, *options: str, block: bool = False, more: str = "") -> None:
        (desk.folder / "shop.py").write_text(JOB + more)
        self._desk = desk
        self.process = desk.worker(*options)
        until(desk.workers, self.process)
        desk.conn.execute("select outrider.enqueue('shop.fold', %s::jsonb)", [json.dumps({"block": block})])
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "folding\n"

    def told(self) -> bool:
        return self._desk.conn.execute("select bool_or(stopping) from outrider.worker").fetchone() == (True,)

    def released(self) -> bool:
        [(status,)] = self._desk.conn.execute("select status from outrider.job").fetchall()
        return bool(status != "in_flight")

    def ended(self) -> tuple[int, str]:
        code, err = end(self.process)
        deadline = time.monotonic() + DEADLINE
        while not self.released():
            assert time.monotonic() < deadline
            time.sleep(PAUSE)
        row = self._desk.conn.execute("select status, attempts, crashes from outrider.job").fetchone()
        assert row == ("pending", 0, 0), "as if it had not been claimed"
        return code, err


def test_a_second_ctrl_c_counts_no_crash_of_the_job_that_runs(desk: Desk) -> None:
    folding = Folding(desk, "--grace", "90s")
    folding.process.send_signal(signal.SIGINT)
    until(folding.told, folding.process)
    folding.process.send_signal(signal.SIGINT)
    code, err = folding.ended()
    assert code == 128 + signal.SIGINT
    [line] = [line for line in err.splitlines() if "event=worker_stopping" in line]
    assert "jobs_running=1 running=shop.fold" in line
    assert "grace_s=90.0" in line
    assert "a second Ctrl-C or SIGTERM" in line


@pytest.mark.verify
def test_a_second_ctrl_c_counts_no_crash_of_a_job_that_blocks_the_loop(desk: Desk) -> None:
    """Takes 3 s: so long the worker tries to end in good order."""
    folding = Folding(desk, block=True)
    folding.process.send_signal(signal.SIGINT)
    folding.process.send_signal(signal.SIGTERM)
    code, err = folding.ended()
    assert code in (128 + signal.SIGINT, 128 + signal.SIGTERM)
    assert "event=worker_stopping" in err


@pytest.mark.verify
def test_the_third_signal_leaves_at_once_and_counts_no_crash(desk: Desk) -> None:
    """After the second one it would wait for an hour."""
    folding = Folding(desk, block=True, more="from outrider.cli import shutdown\nshutdown.HURRIED = 3600\n")
    folding.process.send_signal(signal.SIGINT)
    assert folding.process.stderr is not None
    while "event=worker_stopping" not in folding.process.stderr.readline():
        assert folding.process.poll() is None
    folding.process.send_signal(signal.SIGTERM)
    while folding.process.poll() is None:  # the same signal, sent twice before it is heard, is heard once
        folding.process.send_signal(signal.SIGINT)
        time.sleep(PAUSE)
    assert folding.ended()[0] in (128 + signal.SIGINT, 128 + signal.SIGTERM)


@pytest.mark.verify
def test_a_second_ctrl_c_counts_no_crash_in_several_processes(desk: Desk) -> None:
    """Two interpreters and their parent start."""
    folding = Folding(desk, "--processes", "2", "--grace", "90s")
    folding.process.send_signal(signal.SIGINT)
    until(folding.told, folding.process)
    folding.process.send_signal(signal.SIGINT)
    code, err = folding.ended()
    assert code == 128 + signal.SIGINT
    assert "jobs_running=1 running=shop.fold" in err


class Blocking:
    """A worker whose handler blocks the event loop, and the counters of its cursor."""

    def __init__(self, desk: Desk) -> None:
        (desk.folder / "shop.py").write_text(BLOCKING)
        self._desk = desk
        self.process = desk.worker("--handlers", "shop.block", "--grace", "90s")
        until(desk.workers, self.process)
        [(self._cursor,)] = desk.conn.execute(
            "select id from outrider.cursor where subscription = 'shop.block'"
        ).fetchall()

    def deaths(self, n: int) -> None:
        """As if that many workers had died in the batch that comes next."""
        for _ in range(n):
            self._desk.conn.execute(f"select nextval('outrider.takes_{self._cursor}')")

    def begun(self) -> None:
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "blocking\n"

    def counts(self) -> tuple[int, int]:
        """Takes and excused rollbacks."""
        query = "select coalesce(pg_sequence_last_value(%s::regclass), 0)"
        names = [f"outrider.{each}_{self._cursor}" for each in ("takes", "excused")]
        takes, excused = [self._desk.conn.execute(query, [name]).fetchall()[0][0] for name in names]
        return takes, excused

    def killed(self) -> None:
        """Told to stop, then killed when it has excused itself, as a supervisor does after its own grace time."""
        self.process.send_signal(signal.SIGTERM)
        until(lambda: self.counts()[1] == 1, self.process)
        self.process.kill()
        end(self.process)


def test_a_worker_that_was_told_to_stop_is_no_death_of_its_handler(desk: Desk) -> None:
    blocking = Blocking(desk)
    desk.publish(1)
    blocking.begun()
    blocking.killed()
    assert blocking.counts() == (1, 1)


@pytest.mark.verify
def test_a_worker_that_was_told_to_stop_is_no_crash_of_its_suspect(desk: Desk) -> None:
    """Three such crashes would bury it."""
    blocking = Blocking(desk)
    blocking.deaths(3)
    desk.publish(1)
    blocking.begun()
    assert desk.conn.execute("select suspect, crashes from outrider.delivery").fetchall() == [(True, 1)]
    blocking.killed()
    deadline = time.monotonic() + DEADLINE
    while desk.conn.execute("select crashes from outrider.delivery").fetchall() != [(0,)]:
        assert time.monotonic() < deadline
        time.sleep(PAUSE)


async def test_a_signal_is_heard_in_place_when_the_loop_is_blocked() -> None:
    """Without it, a worker whose loop is blocked would not end after its grace time."""
    heard: list[str] = []
    with shutdown.obeying(lambda: heard.append("on the loop"), lambda _: None, lambda: heard.append("in place")):
        signal.raise_signal(signal.SIGTERM)
        assert heard == ["in place"]
        await asyncio.sleep(0)
        assert heard == ["in place", "on the loop"]


@pytest.mark.verify
def test_a_grace_time_that_is_not_enough(desk: Desk) -> None:
    with desk.locked(100):
        process = desk.worker("--grace", "1s")
        desk.publish(100)
        until(desk.stuck, process)
        process.terminate()
        code, err = end(process)
    assert code == 1
    assert "the grace time of 1s was not enough" in err
    again = desk.worker()
    until(lambda: desk.effects() == [100], again)
    again.terminate()
    assert end(again)[0] == 0


@pytest.mark.verify
def test_health(desk: Desk) -> None:
    process = desk.worker("--health-port", "0", "--log-level", "error")
    url = health_of(process)
    until(lambda: ask(f"{url}/readyz")[0] == 200, process)
    status, body = ask(f"{url}/healthz")
    assert (status, body["status"], body["handlers"]) == (200, "ok", ["shop.count"])
    assert desk.conn.execute("select id::text from outrider.worker").fetchall() in ([], [(body["worker"],)])
    taken = desk.worker("--health-port", url.rpartition(":")[2])
    assert end(taken)[0] == 1
    process.terminate()
    assert end(process) == (0, "")


@pytest.mark.verify
def test_log_lines_as_json(desk: Desk) -> None:
    process = desk.worker("--log-json")
    desk.publish(1)
    until(lambda: desk.effects() == [1], process)
    process.terminate()
    _, err = end(process)
    lines = {line["event"]: line for line in map(json.loads, err.splitlines())}
    assert {"worker_up", "summary", "worker_down"} <= lines.keys()
    assert (lines["summary"]["handler_name"], lines["summary"]["handled"]) == ("shop.count", 1)
    assert lines["summary"]["level"] == "info"


@pytest.mark.verify
def test_an_app_that_has_set_up_logging_keeps_it(desk: Desk) -> None:
    (desk.folder / "shop.py").write_text(
        "import logging\nlogging.basicConfig(level='INFO', format='MINE %(message)s')\n" + APP
    )
    process = desk.worker()
    until(desk.workers, process)
    process.terminate()
    code, err = end(process)
    assert code == 0
    assert all(line.startswith("MINE ") for line in err.splitlines())
    assert "MINE event=worker_up" in err


# Several processes


@pytest.mark.verify
def test_a_killed_process_is_replaced_and_the_others_end_with_the_parent(desk: Desk) -> None:
    hold = desk.folder / "hold"
    (desk.folder / "shop.py").write_text(
        f"import os, time\nwhile os.path.exists({str(hold)!r}): time.sleep(0.02)\n{APP}"
    )
    with desk.locked(100):
        parent = desk.worker("--processes", "2", "--health-port", "0", "--log-level", "error")
        url = health_of(parent)
        until(lambda: len(desk.workers()) == 2, parent)
        first = desk.workers()
        assert first == {child["pid"] for child in ask(f"{url}/healthz")[1]["processes"]}
        assert parent.pid not in first
        desk.publish(1, 100)
        until(desk.stuck, parent)
        [(victim,)] = desk.conn.execute(
            """select w.pid from outrider.worker as w where w.pid = any (%s) order by w.pid limit 1""", [list(first)]
        ).fetchall()
        hold.touch()  # its successor is not ready before it has been seen that one is missing
        os.kill(victim, signal.SIGKILL)
        until(lambda: ask(f"{url}/readyz")[0] == 503, parent)
        assert ask(f"{url}/healthz")[0] == 200
        hold.unlink()
        until(lambda: len(desk.workers() - first) == 1, parent)
        until(lambda: ask(f"{url}/readyz")[0] == 200, parent)
    until(lambda: desk.effects() == [1, 100], parent)
    parent.terminate()
    code, err = end(parent)
    assert code == 0, err
    assert f"(pid {victim}) was killed by SIGKILL; it is restarted in 1 s" in err
    assert desk.workers() == {victim}
    assert desk.effects() == [1, 100]


@pytest.mark.verify
def test_the_second_signal_ends_all_processes_at_once(desk: Desk) -> None:
    with desk.locked(100):
        parent = desk.worker("--processes", "2", "--health-port", "0")
        url = health_of(parent)
        desk.publish(100)
        until(desk.stuck, parent)
        until(lambda: len(desk.workers()) == 2, parent)
        children = [psutil.Process(pid) for pid in desk.workers()]
        parent.send_signal(signal.SIGINT)
        until(lambda: ask(f"{url}/readyz")[1].get("reason") == "stopping", parent)
        parent.send_signal(signal.SIGINT)
        assert end(parent)[0] == 128 + signal.SIGINT
        assert psutil.wait_procs(children, timeout=DEADLINE)[1] == []


@pytest.mark.verify
def test_children_drain_when_everybody_is_signalled(desk: Desk) -> None:
    """As systemd does: the children hear it from both sides, and that is not a second signal."""
    with desk.locked(100):
        parent = desk.worker("--processes", "2", "--health-port", "0")
        url = health_of(parent)
        desk.publish(100)
        until(desk.stuck, parent)
        until(lambda: len(desk.workers()) == 2, parent)
        for pid in desk.workers():
            os.kill(pid, signal.SIGTERM)
        until(lambda: len(desk.workers()) == 1, parent)  # the other one had nothing to finish
        parent.terminate()
        until(lambda: ask(f"{url}/readyz")[1].get("reason") == "stopping", parent)
    assert end(parent)[0] == 0
    assert desk.effects() == [100]


@pytest.mark.verify
def test_children_drain_when_the_parent_is_killed(desk: Desk) -> None:
    with desk.locked(100):
        parent = desk.worker("--processes", "2")
        desk.publish(100)
        until(desk.stuck, parent)
        until(lambda: len(desk.workers()) == 2, parent)
        children = [psutil.Process(pid) for pid in desk.workers()]
        parent.kill()
        parent.wait()
    assert psutil.wait_procs(children, timeout=DEADLINE)[1] == []
    assert (desk.effects(), desk.workers()) == ([100], set())


async def test_a_child_notices_by_itself_that_it_is_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the system does not tell: its parent is another one now."""
    parents = [7, 7, 1]
    monkeypatch.setattr(shutdown, "LOOK", 0)
    monkeypatch.setattr(os, "getppid", lambda: parents.pop(0))
    await shutdown.until_alone(7)
    assert parents == []


CLASSES = (
    APP
    + """
@app.handler(Placed, name="shop.heavy", start="beginning", channel_class="heavy")
async def heavy(event, ctx):
    await ctx.tx.execute("insert into effect values (%s, %s)", [1000 + event.n, os.getpid()])
"""
)


@pytest.mark.verify
@pytest.mark.parametrize("processes", ["1", "2"])
def test_processes_of_different_classes_share_the_work(desk: Desk, processes: str) -> None:
    (desk.folder / "shop.py").write_text(CLASSES)
    rest = desk.worker("--only-class")
    desk.publish(1, 2)
    until(lambda: desk.effects() == [1, 2], rest)
    heavy = desk.worker("--class", "heavy", "--only-class", "--processes", processes)
    until(lambda: desk.effects() == [1, 2, 1001, 1002], heavy)
    desk.publish(3)
    until(lambda: desk.effects() == [1, 2, 3, 1001, 1002, 1003], heavy)
    by = desk.conn.execute("select pid = %s, min(n), max(n) from effect group by 1 order by 1", [rest.pid]).fetchall()
    assert by == [(False, 1001, 1003), (True, 1, 3)]
    for process in (rest, heavy):
        process.terminate()
        assert end(process)[0] == 0


# What can be wrong


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--app", "shop:app", "--handlers", "shop.cuont"], "inbox or rollup is called 'shop.cuont'; the app declares: "),
        (["--app", "shop:app", "--exclude", "shop.*"], "no handler or job is left"),
        (["--app", "shop:app", "--grace", "soon"], "--grace: "),
        (["--app", "shop:app", "--class", "Not Good"], "--class: "),
        (["--app", "shop:app", "--class", "heavy", "--only-class"], "no handler is of the channel class 'heavy'"),
        (["--app", "empty:app"], "the app declares no handler"),
        (["--app", "nowhere:app"], "names the module 'nowhere'"),
        ([], "no app: name it with --app module:app"),
        (["--app", "shop:app"], "no database"),
        (["--app", "shop:app", "--dsn", "postgresql://127.0.0.1:1/x"], "nothing listens at 127.0.0.1:1"),
        (["--app", "nowhere:app", "--processes", "2"], "names the module 'nowhere'"),
        (["nowhere:app"], "--app names the module 'nowhere'"),
    ],
)  # fmt: skip
def test_errors(outrider: Run, tmp_path: Path, options: list[str], said: str) -> None:
    (tmp_path / "shop.py").write_text(APP)
    (tmp_path / "empty.py").write_text("from outrider import Outrider\napp = Outrider()\n")
    done = outrider("worker", *options)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1), done.stderr
    assert said in done.stderr


def test_a_database_without_the_schema(outrider: Run, empty_database: str, tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(APP)
    done = outrider("worker", "--app", "shop:app", "--dsn", empty_database)
    assert (done.returncode, "run outrider migrate" in done.stderr) == (1, True)


@pytest.mark.verify
def test_another_schema_is_used_throughout(desk: Desk, outrider: Run) -> None:
    """Handlers that publish and the app's readers follow the option too."""
    (desk.folder / "shop.py").write_text(
        APP
        + """
class Told(Event, type="cli.told"):
    n: int

reader = app.reader(Told, name="shop.told")

@app.handler(Placed, name="shop.tell", start="beginning")
async def tell(event, ctx):
    await app.publish(ctx.tx, Told(n=event.n))
"""
    )
    outrider("migrate", "--app", "shop:app", "--dsn", desk.dsn, "--schema", "events")
    process = desk.worker("--schema", "events", "--exclude", "shop.count")
    desk.conn.execute("""select events.publish('cli.worked', '{"n": 7}')""")
    told = "select payload->>'n' from events.outbox where event_type = 'cli.told'"
    until(lambda: desk.conn.execute(told).fetchall() == [("7",)], process)
    process.terminate()
    assert end(process)[0] == 0
