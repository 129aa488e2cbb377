"""`outrider init`: what it writes runs as it is, on a database and without one; what is there is never overwritten."""

from __future__ import annotations

import asyncio
import json
import re
import shlex
import signal
import subprocess
import sys
import tomllib
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import psycopg
import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.brokers import NatsServer, RedisServer
from tests.cli.conftest import Run
from tests.cli.test_worker import end
from tests.postgres.embedded.conftest import place
from tests.processes import clean, processes, until

from outrider.cli.commands.init import LONGEST
from outrider.postgres.schema.migrate import script
from outrider.streams import NatsLease, RedisLease, broker

__all__ = ["place"]

ROOT = Path(__file__).parents[2]
Boot = Callable[..., "subprocess.Popen[str]"]
WRITTEN = [
    "migrations/0001_outrider.sql",
    "migrations/0002_billing.sql",
    "billing/__init__.py",
    "billing/events.py",
    "billing/app.py",
    "billing/__main__.py",
    "tests/test_billing.py",
    "pyproject.toml",
]


@pytest.fixture
def boot() -> Iterator[Boot]:
    """Starts a service as its user would: python -m billing."""
    with processes() as begin:
        yield lambda folder, service="billing", **env: begin([sys.executable, "-m", service], folder, env)


def files(folder: Path) -> list[str]:
    return sorted(str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file())


def tool(folder: Path, *command: str, env: Mapping[str, str] | None = None) -> None:
    done = subprocess.run(
        [sys.executable, "-m", *command], cwd=folder, env=clean() | dict(env or {}), capture_output=True, text=True,
        check=False, timeout=200,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


def apply(conn: psycopg.Connection[Any], folder: Path) -> None:
    for file in sorted((folder / "migrations").glob("*.sql")):
        conn.execute(file.read_bytes())


def add(conn: psycopg.Connection[Any], name: str, schema: str = "outrider", service: str = "billing") -> None:
    payload = json.dumps({"item_id": "00000000-0000-4000-8000-000000000001", "name": name})
    conn.execute(f"select {schema}.publish(%s, %s::jsonb)".encode(), [f"{service}.item_added", payload])


def counted(conn: psycopg.Connection[Any], service: str = "billing") -> list[tuple[str, int]]:
    return conn.execute(f"select name, items from {service}_item_count order by name".encode()).fetchall()


def test_help_teaches(outrider: Run) -> None:
    done = outrider("init", "--help")
    assert (done.returncode, done.stderr) == (0, "")
    for taught in ("Needs:", "Examples", "outrider init", "--service", "--out-dir"):
        assert taught in done.stdout
    assert "init" in outrider("--help").stdout


def test_what_it_writes_runs(outrider: Run, boot: Boot, empty_database: str, tmp_path: Path) -> None:
    """From an empty folder and an empty database to a handled event, and to an orderly end."""
    done = outrider("init", "--service", "billing")
    assert (done.returncode, done.stderr) == (0, "")
    assert [line.strip() for line in done.stdout.splitlines()[1 : 1 + len(WRITTEN)]] == WRITTEN
    assert files(tmp_path) == sorted(WRITTEN)
    with psycopg.connect(empty_database, autocommit=True) as conn:
        apply(conn, tmp_path)
        add(conn, "apple")
        process = boot(tmp_path, OUTRIDER_DSN=empty_database)
        until(lambda: counted(conn) == [("apple", 1)], process)
        add(conn, "apple")
        until(lambda: counted(conn) == [("apple", 2)], process)
        process.send_signal(signal.SIGTERM)
        code, err = end(process)
        assert code == 0, err
        assert conn.execute("select count(*) from outrider.worker").fetchone() == (0,)
    assert "up to date" in outrider("migrate", "--dsn", empty_database).stdout


BROKERS = {"redis": (RedisServer, "REDIS_URL"), "nats": (NatsServer, "NATS_URL")}
SENT = {"relay": "billing.out", "topic": "billing.item_added"}


@pytest.mark.parametrize("kind", ["redis", pytest.param("nats", marks=pytest.mark.verify)])
def test_with_a_relay_it_sends_its_events(
    outrider: Run, boot: Boot, empty_database: str, tmp_path: Path, kind: str
) -> None:
    """To a real broker, with its lease, and tells so in its metrics; the next process goes on after it."""
    done = outrider("init", "--service", "billing", "--relay", kind)
    assert (done.returncode, done.stderr) == (0, "")
    server, variable = BROKERS[kind]
    assert f"outrider[{kind},metrics]" in done.stdout
    assert variable in done.stdout
    assert files(tmp_path) == sorted([*WRITTEN, "billing/relay.py"])
    with server() as running, psycopg.connect(empty_database, autocommit=True) as conn:
        apply(conn, tmp_path)
        add(conn, "apple")
        for round_ in (1, 2):
            process = boot(tmp_path, OUTRIDER_DSN=empty_database, METRICS_PORT="0", **{variable: running.url})
            assert process.stderr is not None
            url = next(line.split()[-1] for line in process.stderr if "metrics at http" in line)
            until(lambda: counted(conn) == [("apple", round_)], process)  # noqa: B023
            until(lambda: sample(url, "outrider_relayed_total", SENT) == 1, process)  # noqa: B023
            assert sample(url, "outrider_relay_lease_total", {"relay": "billing.out", "result": "acquired"}) == 1
            until(lambda: sample(url, "outrider_relay_depth", SENT) == 0, process)  # noqa: B023
            process.send_signal(signal.SIGTERM)
            code, err = end(process)
            assert code == 0, err
            assert not re.search("Traceback|ERROR", err)
            assert [each["payload"]["name"] for each in asyncio.run(stream(kind, running.url))] == ["apple"] * round_
            add(conn, "apple")


def sample(url: str, name: str, labels: Mapping[str, str]) -> float | None:
    with urllib.request.urlopen(url, timeout=60) as answer:
        families = text_string_to_metric_families(answer.read().decode())
    found = [each.value for family in families for each in family.samples if (each.name, each.labels) == (name, labels)]
    return found[0] if found else None


async def stream(kind: str, url: str) -> list[Any]:
    """What a reader of the stream finds, and that nobody holds the lease any more."""
    sink: Any = broker(url, stream="billing")
    await sink.open()
    found = [json.loads(each.data) async for page in sink.tail("billing", sink.start) for each in page]
    await sink.close()
    lease = RedisLease(url, "lock:outbox:billing") if kind == "redis" else NatsLease(url, "outbox_billing")
    assert await lease.acquire()
    await lease.release()
    return found


@pytest.mark.verify
def test_it_runs_without_a_database_at_hand(outrider: Run, boot: Boot, place: Path) -> None:
    outrider("init", "--service", "billing", "--out-dir", str(place))
    process = boot(place, OUTRIDER_EMBEDDED="1")
    assert process.stderr is not None
    dsn = next(shlex.split(line)[-1] for line in process.stderr if line.startswith("  connect  "))
    ready = "select to_regclass('billing_item_count') is not null"
    with psycopg.connect(dsn, autocommit=True) as conn:
        until(lambda: conn.execute(ready).fetchone() == (True,), process)
        add(conn, "apple")
        until(lambda: counted(conn) == [("apple", 1)], process)
    process.send_signal(signal.SIGINT)
    code, err = end(process)
    assert code == 0, err
    assert not re.search("Traceback|ERROR", err)


def test_the_migration_is_what_migrate_prints(outrider: Run, tmp_path: Path) -> None:
    outrider("init", "--service", "billing")
    assert (tmp_path / WRITTEN[0]).read_text() == outrider("migrate", "--sql", cwd=tmp_path / "tests").stdout


@pytest.mark.verify
@pytest.mark.timeout(300)
@pytest.mark.parametrize("relay", ["", "redis", "nats"])
@pytest.mark.parametrize("service", ["billing", pytest.param("b" * LONGEST, marks=pytest.mark.long)])
def test_what_it_writes_passes_ruff_mypy_and_its_own_test(
    outrider: Run, tmp_path: Path, server: str, service: str, relay: str
) -> None:
    outrider("init", "--service", service, *(["--relay", relay] if relay else []))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    rules = ",".join(set(project["tool"]["ruff"]["lint"]["select"]) - {"E"})
    tool(tmp_path, "ruff", "check", "--isolated")
    tool(tmp_path, "ruff", "check", "--isolated", "--select", rules, "--ignore", "S101")
    if service == "billing":
        tool(tmp_path, "ruff", "format", "--isolated", "--check")
        tool(tmp_path, "mypy", "--strict", "--cache-dir", str(ROOT / ".mypy_cache" / "init"), ".")
    tool(tmp_path, "pytest", "-q", "-W", "error", env={"OUTRIDER_TEST_DSN": server})


@pytest.mark.verify
def test_another_schema(outrider: Run, boot: Boot, empty_database: str, tmp_path: Path, server: str) -> None:
    """In the app, the migration and the test; given as an option or, as for other commands, by the environment."""
    folder = tmp_path / "services" / "shop"
    done = outrider("init", "--service", "shop", "--out-dir", str(folder), "--schema", "events", "--json")
    written = json.loads(done.stdout)
    assert (written["service"], written["schema"], len(written["written"])) == ("shop", "events", len(WRITTEN))
    tool(folder, "pytest", "-q", env={"OUTRIDER_TEST_DSN": server})
    with psycopg.connect(empty_database, autocommit=True) as conn:
        apply(conn, folder)
        add(conn, "apple", "events", "shop")
        process = boot(folder, "shop", OUTRIDER_DSN=empty_database)
        until(lambda: counted(conn, "shop") == [("apple", 1)], process)
        process.terminate()
        assert end(process)[0] == 0
    outrider("init", "--service", "till", env={"OUTRIDER_SCHEMA": "events"})
    assert (tmp_path / WRITTEN[0]).read_text() == script("events")


@pytest.mark.verify
def test_a_boot_without_what_it_needs_says_so(outrider: Run, boot: Boot, empty_database: str, tmp_path: Path) -> None:
    outrider("init", "--service", "billing")
    for env, said in (({}, "set OUTRIDER_DSN"), ({"OUTRIDER_DSN": empty_database}, "run outrider migrate")):
        code, err = end(boot(tmp_path, **env))
        assert (code, err.count("\n")) == (1, 1), err
        assert err.startswith("billing: ")
        assert said in err


def test_commands_find_the_app(outrider: Run, database: str, tmp_path: Path) -> None:
    outrider("init", "--service", "billing")
    assert "billing.count_items: created" in outrider("migrate", "--dsn", database).stdout


# What is there already


def test_nothing_is_overwritten(outrider: Run, tmp_path: Path) -> None:
    (tmp_path / "billing").mkdir()
    (tmp_path / "billing" / "app.py").write_text("mine")
    refused = outrider("init", "--service", "billing")
    assert (refused.returncode, refused.stdout) == (1, "")
    assert "nothing was written, because these exist: billing/app.py;" in refused.stderr
    assert files(tmp_path) == ["billing/app.py"]
    assert outrider("init", "--service", "billing", "--force").returncode == 0
    assert "mine" not in (tmp_path / "billing" / "app.py").read_text()
    again = outrider("init", "--service", "billing")
    assert ", ".join(WRITTEN[:-1]) in again.stderr


def test_the_projects_own_settings_are_never_touched(outrider: Run, tmp_path: Path) -> None:
    project = tmp_path / "pyproject.toml"
    for text, hinted in (("[project]\nname = 'x'\n", True), ("[tool.outrider]\napp = 'a:b'\n", False), ("[tool", True)):
        project.write_text(text)
        done = outrider("init", "--service", "billing", "--force", cwd=tmp_path)
        assert (done.returncode, project.read_text()) == (0, text)
        assert ('app = "billing.app:app"' in done.stdout) is hinted


def test_a_file_in_the_way_of_a_folder(outrider: Run, tmp_path: Path) -> None:
    (tmp_path / "billing").write_text("a file")
    refused = outrider("init", "--service", "billing")
    assert (refused.returncode, refused.stderr.count("\n")) == (1, 1)
    assert "cannot be written" in refused.stderr
    assert files(tmp_path) == ["billing"]


@pytest.mark.parametrize(
    ("service", "instead"),
    [
        ("Billing", "billing"),
        ("billing-service", "billing_service"),
        ("BillingService", "billing_service"),
        ("7seas", "seas"),
        ("class", "class_service"),
        ("match", "match_service"),
        ("json", "json_service"),
        ("psycopg", "psycopg_service"),
        ("outrider", "outrider_service"),
        ("tests", "tests_service"),
        ("migrations", "migrations_service"),
        ("../up", "up"),
        ("", "billing"),
        ("a" * 70, "a" * LONGEST),
    ],
)
def test_a_name_that_does_not_do(outrider: Run, tmp_path: Path, service: str, instead: str) -> None:
    refused = outrider("init", "--service", service, "--out-dir", "new")
    assert (refused.returncode, refused.stdout, refused.stderr.count("\n")) == (1, "", 1)
    assert refused.stderr.endswith(f"this would do: {instead}\n")
    assert files(tmp_path) == []
    assert not (tmp_path / "new").exists()


def test_a_schema_that_does_not_do(outrider: Run, tmp_path: Path) -> None:
    for schema in ("pg_mine", "My-Schema"):
        assert "schema: " in outrider("init", "--service", "billing", "--schema", schema).stderr
    assert files(tmp_path) == []
