"""`outrider dev`: Postgres, migrations, a worker that follows the code, and the dashboard. Nothing is left behind."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import psutil
import psycopg
import pytest
from tests.cli.conftest import Run, Start
from tests.postgres.embedded.conftest import await_ended, place

from outrider import Outrider
from outrider.cli.commands.dev import Development
from outrider.cli.commands.worker import _developed_app
from outrider.cli.reload import changes, python_files
from outrider.cli.serve import ServeOptions, Service
from outrider.cli.target import Location
from outrider.dashboard import Dashboard

__all__ = ["place"]

SHOP = """
from outrider import Event, Outrider

class Placed(Event, type="dev.placed"):
    number: int

app = Outrider(context="shop"{settings})

@app.handler(Placed, name="shop.count", start="beginning")
async def count(event: Placed) -> None:
    print("{says}", event.number)
"""
PUBLISH = "select outrider.publish('dev.placed', jsonb_build_object('number', %s::int))"
PREFIX = re.compile(r"(dev|postgres|migrate|dashboard|worker) +\| ")


def write(folder: Path, says: str, settings: str = "") -> None:
    (folder / "shop.py").write_text(SHOP.format(says=says, settings=settings))


class Terminal:
    """What one `outrider dev` prints."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.lines: list[str] = []

    def until(self, text: str) -> str:
        """Reads on to the line that contains it."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            assert PREFIX.match(line), line
            self.lines.append(line)
            if text in line:
                return line
        raise AssertionError(f"it ended early: {''.join(self.lines)} {self.process.communicate()[1]}")

    def end(self, number: signal.Signals = signal.SIGINT) -> None:
        children = psutil.Process(self.process.pid).children(recursive=True)
        self.process.send_signal(number)
        self.until("dev       | stopped")
        out, err = self.process.communicate(timeout=200)
        assert (self.process.returncode, out, err) == (0, "", "")
        assert not [each for each in children if each.is_running()]


@pytest.fixture
def publish(database: str) -> Iterator[psycopg.Connection]:
    with psycopg.connect(database, autocommit=True) as conn:
        yield conn


def test_the_worker_follows_the_code(start: Start, database: str, publish: psycopg.Connection, tmp_path: Path) -> None:
    write(tmp_path, "first")
    terminal = Terminal(start("dev", "shop:app", "--dsn", database, "--port", "0"))
    terminal.until('migrate   | schema "outrider": up to date')
    publish.execute(PUBLISH, [1])
    terminal.until("worker    | first 1")
    write(tmp_path, "second")
    terminal.until("dev       | changed: shop.py")
    terminal.until("event=worker_down")
    publish.execute(PUBLISH, [2])
    terminal.until("worker    | second 2")
    (tmp_path / "shop.py").write_text("def broken(:\n")
    assert "code 1; it starts again when the code changes" in terminal.until("dev       | the worker ended")
    shown = "".join(terminal.lines[-8:])
    assert f'File "{tmp_path}/shop.py", line 1' in shown
    assert "SyntaxError" in shown
    assert "importlib" not in shown
    write(tmp_path, "third")
    publish.execute(PUBLISH, [3])
    terminal.until("worker    | third 3")
    terminal.end()


def test_what_is_published_once_the_address_is_shown_is_handled(
    start: Start, database: str, publish: psycopg.Connection, tmp_path: Path
) -> None:
    """By a handler that begins now, as those of the tutorial do."""
    write(tmp_path, "seen")
    shop = tmp_path / "shop.py"
    shop.write_text(shop.read_text().replace(', start="beginning"', ""))
    terminal = Terminal(start("dev", "shop:app", "--dsn", database, "--port", "0"))
    terminal.until("dashboard | http://")
    publish.execute(PUBLISH, [1])
    terminal.until("worker    | seen 1")
    terminal.end()


def test_the_address_is_shown_although_the_app_is_broken(start: Start, database: str, tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text("def broken(:\n")
    terminal = Terminal(start("dev", "shop:app", "--dsn", database, "--port", "0"))
    terminal.until("dashboard | http://")
    terminal.end()


@pytest.mark.parametrize("named", ["shop", "shop.py", ":app"])
def test_a_name_that_no_change_of_a_file_can_cure_is_refused(outrider: Run, database: str, named: str) -> None:
    done = outrider("dev", named, "--dsn", database, "--port", "0")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"outrider: the command line names {named!r}: write it as module:name, like shop:app\n"


def test_it_ends_although_nobody_reads_what_it_prints(start: Start, database: str, tmp_path: Path) -> None:
    """As behind `| head`: what cannot be printed any more does not keep the signal from the worker."""
    write(tmp_path, "unread")
    terminal = Terminal(start("dev", "shop:app", "--dsn", database, "--port", "0"))
    terminal.until("dashboard | http://")
    assert terminal.process.stdout is not None
    terminal.process.stdout.close()
    terminal.process.send_signal(signal.SIGINT)
    assert terminal.process.wait(timeout=120) != -signal.SIGKILL


def test_the_dashboard_may_act(start: Start, database: str, tmp_path: Path) -> None:
    terminal = Terminal(start("dev", "--dsn", database, "--port", "0"))
    address = urlsplit(terminal.until("dashboard |").split("| ")[1].strip())
    assert address.hostname == "127.0.0.1"
    given = parse_qs(address.fragment)
    site = f"http://{address.netloc}"
    terminal.until("no app is named")
    with psycopg.connect(database) as conn:
        conn.execute(PUBLISH, [1])
    with httpx.Client(base_url=site, headers={"Origin": site}, follow_redirects=True, timeout=60) as client:
        client.post("/login", data={"token": given["token"][0], "name": given["name"][0]})
        event = re.search(r"/event/[0-9a-f-]{36}", client.get("/log").text)
        assert event is not None
        assert 'action="' in client.get(event[0]).text
    terminal.end(signal.SIGTERM)


async def test_it_listens_nowhere_else(database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The variable may name the production database."""
    monkeypatch.setenv("OUTRIDER_LISTEN_DSN", "host=/nowhere")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    write(tmp_path, "never")
    (tmp_path / "shop.py").rename(tmp_path / "listening_shop.py")
    for location in (Location("listening_shop:app", database), Location("listening_shop:app", embedded=True)):
        app = _developed_app(Service(location, ServeOptions()), "outrider")
        assert app.settings.listen_dsn is None
    shown: list[str | None] = []

    class Recorded(Dashboard):
        def __init__(self, app: Outrider, **options: Any) -> None:
            shown.append(app.settings.listen_dsn)
            super().__init__(app, **options)

    monkeypatch.setattr("outrider.dashboard.Dashboard", Recorded)
    async with Development(database, "outrider", None, [], 0)._dashboard():
        assert shown == [database]


def test_no_worker_outlives_a_killed_dev(
    start: Start, database: str, publish: psycopg.Connection, tmp_path: Path
) -> None:
    write(tmp_path, "ran")
    terminal = Terminal(start("dev", "shop:app", "--dsn", database, "--port", "0"))
    publish.execute(PUBLISH, [1])
    terminal.until("worker    | ran 1")
    children = psutil.Process(terminal.process.pid).children(recursive=True)
    assert children
    os.kill(terminal.process.pid, signal.SIGKILL)
    for each in children:
        await_ended(each)


@pytest.mark.verify
def test_a_worker_that_blocks_is_replaced(
    start: Start, database: str, publish: psycopg.Connection, tmp_path: Path
) -> None:
    write(tmp_path, "first")
    code = (tmp_path / "shop.py").read_text()
    (tmp_path / "shop.py").write_text(f'{code}\n    import time; print("blocks"); time.sleep(3600)\n')
    terminal = Terminal(start("dev", "shop:app", "--dsn", database, "--port", "0", "--grace", "100ms"))
    publish.execute(PUBLISH, [1])
    terminal.until("worker    | blocks")
    write(tmp_path, "second")
    terminal.until("worker    | second 1")
    terminal.end()


def test_another_schema_is_named(start: Start, database: str, tmp_path: Path) -> None:
    write(tmp_path, "never", ', schema="events"')
    terminal = Terminal(start("dev", "shop:app", "--dsn", database, "--port", "0"))
    assert "outrider dev --schema events" in terminal.until("worker    | outrider: the app's schema is events")
    terminal.until("it starts again when the code changes")
    terminal.until("dashboard | http")
    terminal.until("dev       | no worker runs: its error is above")
    terminal.end()


@pytest.mark.verify
@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM])
def test_on_the_embedded_postgres(start: Start, outrider: Run, place: Path, ending: signal.Signals) -> None:
    write(place, "embedded", ", embedded=True")
    terminal = Terminal(start("dev", "shop:app", "--port", "0", cwd=place, env={"OUTRIDER_DSN": "host=/nowhere"}))
    export = terminal.until("export OUTRIDER_DSN=")
    dsn = shlex.split(export)[-1].removeprefix("OUTRIDER_DSN=")
    assert "psql" in "".join(terminal.lines)
    terminal.until("migration applied")
    with psycopg.connect(dsn, autocommit=True) as conn:
        assert conn.info.dbname == "outrider"
        conn.execute(PUBLISH, [1])
    terminal.until("worker    | embedded 1")
    assert "".join(terminal.lines).count("  connect  ") == 1
    assert "up to date" in outrider("migrate", "--embedded", cwd=place).stdout
    terminal.end(ending)
    with pytest.raises(psycopg.OperationalError):
        psycopg.connect(dsn)


def test_which_files_are_watched(tmp_path: Path) -> None:
    for name in ("a.py", "deep/er/b.py", ".hidden/c.py", "venv/lib/d.py", "__pycache__/e.py", "notes.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "venv/pyvenv.cfg").touch()
    assert {Path(each).name for each in python_files([tmp_path])} == {"a.py", "b.py"}


async def test_files_that_come_change_and_go_are_told(tmp_path: Path) -> None:
    (tmp_path / "gone.py").touch()
    (tmp_path / "changed.py").touch()
    (tmp_path / "same.py").touch()
    before = python_files([tmp_path])
    (tmp_path / "gone.py").unlink()
    (tmp_path / "changed.py").write_text("now = True")
    (tmp_path / "new.py").touch()
    told = changes([tmp_path], before)
    assert [Path(each).name for each in await anext(told)] == ["changed.py", "gone.py", "new.py"]
