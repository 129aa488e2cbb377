"""`manage.py outrider` as processes: exactly once through a kill, children that set Django up, clear errors."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import psycopg
import pytest
from tests.preloaded import Preloaded
from tests.processes import clean, processes, until

ROOT = Path(__file__).parents[2]
MANAGE = ROOT / "tests" / "integrations" / "django_project" / "manage.py"
DEADLINE = 120

Start = Callable[..., "subprocess.Popen[str]"]
Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """In a folder where nothing of the project is."""
    with processes() as begin:
        yield lambda *arguments, program=(str(MANAGE),), **env: begin(
            [sys.executable, *program, *arguments], tmp_path, {"PYTHONPATH": str(ROOT)} | env
        )


@pytest.fixture
def manage(preloaded: Preloaded, tmp_path: Path) -> Run:
    def run(*arguments: str, program: Sequence[str] = (str(MANAGE),), **env: str) -> subprocess.CompletedProcess[str]:
        environment = clean() | {"PYTHONPATH": str(ROOT)} | env
        return preloaded.run(["python", *program, *arguments], tmp_path, environment)

    return run


class Desk:
    def __init__(self, dsn: str, conn: psycopg.Connection[Any]) -> None:
        self.dsn = dsn
        self.conn = conn

    def publish(self, order_id: str) -> None:
        self.conn.execute(
            "select outrider.publish('django.placed', jsonb_build_object('order_id', %s::text))", [order_id]
        )

    def counts(self) -> tuple[int, int, int]:
        """Invoices, receipts, events that the handler has published."""
        row = self.conn.execute(
            """select (select count(*) from django_project_invoice), (select count(*) from outrider.event_handled),
                      (select count(*) from outrider.outbox where event_type = 'django.invoiced')"""
        ).fetchone()
        assert row is not None
        return row[0], row[1], row[2]

    def workers(self) -> set[int]:
        return {pid for (pid,) in self.conn.execute("select pid from outrider.worker").fetchall()}


@pytest.fixture
def desk(empty_database: str, manage: Run) -> Iterator[Desk]:
    """`manage.py migrate` is enough: the tables of both, and the subscriptions."""
    done = manage("migrate", "--run-syncdb", TEST_DSN=empty_database)
    assert done.returncode == 0, done.stderr
    assert 'Outrider schema "outrider": applied schema' in done.stdout
    with psycopg.connect(empty_database, autocommit=True) as conn:
        yield Desk(empty_database, conn)


def stop(process: subprocess.Popen[str]) -> str:
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=DEADLINE)
    assert process.returncode == 0, err
    return err


# Exactly once


@pytest.mark.verify
@pytest.mark.parametrize(
    ("point", "left"),
    [
        pytest.param("handle.after", (0, 0, 0), marks=pytest.mark.long),
        ("commit.before", (0, 0, 0)),
        pytest.param("commit.after", (1, 1, 1), marks=pytest.mark.long),
    ],
)
def test_a_killed_worker_leaves_all_or_nothing(
    desk: Desk, start: Start, manage: Run, point: str, left: tuple[int, int, int]
) -> None:
    desk.publish("1")
    killed = manage("outrider", "worker", TEST_DSN=desk.dsn, OUTRIDER_FAIL=f"{point}:kill:1")
    assert (killed.returncode, desk.counts()) == (-signal.SIGKILL, left), killed.stderr
    worker = start("outrider", "worker", TEST_DSN=desk.dsn)
    until(lambda: desk.counts() == (1, 1, 1), worker)
    desk.publish("2")
    until(lambda: desk.counts() == (2, 2, 2), worker)
    assert "event=worker_down" in stop(worker)
    assert desk.counts() == (2, 2, 2)


@pytest.mark.verify
def test_every_process_sets_django_up(desk: Desk, start: Start) -> None:
    parent = start("outrider", "worker", "--processes", "2", TEST_DSN=desk.dsn)
    until(lambda: len(desk.workers()) == 2, parent)
    assert parent.pid not in desk.workers()
    desk.publish("1")
    until(lambda: desk.counts() == (1, 1, 1), parent)
    stop(parent)
    assert desk.workers() == set()


# The command


@pytest.mark.verify
def test_migrating_can_be_left_to_the_outrider_command(empty_database: str, manage: Run) -> None:
    where = {"TEST_DSN": empty_database, "TEST_MIGRATE": "0"}
    assert manage("migrate", "--run-syncdb", **where).returncode == 0
    with psycopg.connect(empty_database, autocommit=True) as conn:
        assert conn.execute("select to_regnamespace('outrider')").fetchone() == (None,)
        done = manage("outrider", "migrate", **where)
        assert (done.returncode, "subscription  shop.invoice: created" in done.stdout) == (0, True), done.stderr
        registered = conn.execute("select name from outrider.subscription order by name").fetchall()
    assert registered == [("shop.invoice",), ("shop.invoiced",)]
    assert "up to date" in manage("outrider", "migrate", **where).stdout
    assert "shop.invoice" in manage("outrider", "subscription", "list", **where).stdout


@pytest.mark.verify
def test_arguments_pass_through(manage: Run) -> None:
    version = manage("outrider", "--version")
    assert (version.returncode, version.stdout.split()[0]) == (0, "outrider")
    assert "--processes" in manage("outrider", "worker", "--help").stdout
    wrong = manage("outrider", "worker", "--nonsense")
    assert (wrong.returncode, "--nonsense" in wrong.stderr) == (2, True)


@pytest.mark.verify
def test_another_app_and_djangos_own_options(desk: Desk, manage: Run) -> None:
    settings = "tests.integrations.django_project.settings"
    app = "tests.integrations.django_project.events:app"
    done = manage("outrider", "migrate", "--app", app, f"--settings={settings}", TEST_DSN=desk.dsn, TEST_APP="")
    assert (done.returncode, "shop.invoice: unchanged" in done.stdout) == (0, True), done.stderr


@pytest.mark.verify
def test_a_dsn_of_outriders_own_wins(empty_database: str, manage: Run) -> None:
    done = manage("outrider", "migrate", TEST_ALIAS="lite", OUTRIDER_DSN=empty_database)
    assert (done.returncode, "shop.invoice: created" in done.stdout) == (0, True), done.stderr


CALL = """
import django, sys
from django.core.management import call_command, CommandError
django.setup()
call_command("outrider", "migrate", "status")
try:
    call_command("outrider", "worker", "--grace", "soon")
except CommandError as error:
    print(error)
    sys.exit(error.returncode + 40)
"""


@pytest.mark.verify
def test_it_can_be_called_from_python(desk: Desk, manage: Run) -> None:
    settings = "tests.integrations.django_project.settings"
    done = manage(program=("-c", CALL), TEST_DSN=desk.dsn, DJANGO_SETTINGS_MODULE=settings)
    assert done.returncode == 41, done.stderr
    assert "│ schema " in done.stdout
    assert "outrider worker --grace soon ended with code 1" in done.stdout


@pytest.mark.verify
@pytest.mark.parametrize(
    ("env", "said"),
    [
        ({"TEST_APP": ""}, "settings.OUTRIDER_APP is not set: name your app there"),
        pytest.param({"TEST_APP": "events"}, "'events' names no app: write it as module:name", marks=pytest.mark.long),
        ({"TEST_APP": "nowhere.events:app"}, "importing 'nowhere.events' failed with ModuleNotFoundError"),
        pytest.param(
            {"TEST_APP": "tests.integrations.django_project.events:ap"},
            "which is not there: create it",
            marks=pytest.mark.long,
        ),
        pytest.param(
            {"TEST_APP": "tests.integrations.django_project.events:Placed"}, "which is a ", marks=pytest.mark.long
        ),
        ({"TEST_ALIAS": "lite"}, "DATABASES['lite'] is sqlite, and the log is in Postgres: set OUTRIDER_DATABASE"),
        pytest.param(
            {"TEST_ALIAS": "other"},
            "settings.OUTRIDER_DATABASE is 'other', and DATABASES has no such alias",
            marks=pytest.mark.long,
        ),
        ({}, "DATABASES['default'] is no database, and the log is in Postgres"),
    ],
)
def test_errors(manage: Run, env: dict[str, str], said: str) -> None:
    done = manage("outrider", "worker", **env)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1), done.stderr
    assert said in done.stderr


BARE = """
import sys
import outrider
assert not [name for name in sys.modules if name.split(".")[0] == "django"]
import outrider.integrations.django
from django.conf import settings
assert not settings.configured
"""


@pytest.mark.verify
def test_nobody_else_imports_django_and_importing_needs_no_settings(start: Start) -> None:
    process = start(program=("-W", "error", "-c", BARE))
    _, said = process.communicate(timeout=DEADLINE)
    assert (process.returncode, said) == (0, "")
