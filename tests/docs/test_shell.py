"""The blocks of pages that have no program of their own, run on a shop that has all they name.

The server is this module's own, because roles belong to a server. Every worker that a page starts, starts: 40 s.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import shlex
import signal
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from prometheus_client import CollectorRegistry
from psycopg.conninfo import make_conninfo
from tests.docs.test_docs import ROOT
from tests.observe.test_log import lines as log_lines
from tests.postgres.roles.house import before
from tests.preloaded import Preloaded
from tests.processes import clean, processes, until

from outrider import Bury, Event, Outrider
from outrider.postgres.embedded import Embedded
from outrider.signals import Buried

pytestmark = [pytest.mark.verify, pytest.mark.timeout(240)]

DOCS = ROOT / "docs"
SHOP = """
import sys

from outrider import Event, HandlerContext, Job, Outrider

app = Outrider(context="shop")


def web():
    if "flask" in sys.modules:
        from flask import Flask

        return Flask(__name__)
    from starlette.applications import Starlette

    return Starlette()


web = web()


class OrderPlaced(Event, type="orders.placed", key="order_id"):
    order_id: int


class OrderRefunded(Event, type="orders.refunded", key="order_id"):
    order_id: int


@app.handler(OrderPlaced, OrderRefunded, name="billing.invoice")
async def bill(event: OrderPlaced | OrderRefunded, ctx: HandlerContext) -> None: ...


for name in ("shop.invoice", "sales.book", "sales.search"):

    @app.handler(OrderPlaced, name=name)
    async def handle(event: OrderPlaced, ctx: HandlerContext) -> None: ...


for kind in ("mail.send", "bank.settle", "sales.report"):

    class Work(Job, type=kind):
        campaign: str = "spring"

    @app.job(Work)
    async def work(job: Work) -> None: ...


app.schedule("0 3 * * *", Work(), name="sales.daily")
"""
STAYS = re.compile(r"\boutrider (?:worker|dev|dashboard)\b|^(?:\w+=\S+ )*(?:uvicorn|flask) ")
"""Programs that run until they are told to stop."""
READY = re.compile(r"listener_up|https?://")
FREE = {
    r"--(health|metrics)-port \d+": r"--\1-port 0",
    r"(uvicorn \S+|flask .*run|outrider dev \S+|outrider dashboard)": r"\1 --port 0",
}
PAGES = {
    "dashboard": 5, "fastapi": 1, "flask": 4, "guide": 10, "index": 2, "install": 3, "jobs": 9, "observability": 2,
    "pgbouncer": 2, "roles": 7, "rollout": 10, "runbook": 3, "schedules": 4, "tenants": 3, "troubleshooting": 2,
}  # fmt: skip
"""With the number of their command lines."""
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]


@pytest.fixture
def database(quiet_database: str) -> Iterator[str]:
    """The logins that a page creates go with it."""
    logins = "select quote_ident(rolname) from pg_roles where rolcanlogin and rolname <> current_user"
    try:
        yield quiet_database
    finally:
        with psycopg.connect(quiet_database, autocommit=True) as owner:
            for (name,) in owner.execute(logins).fetchall():
                owner.execute(f"drop owned by {name}; drop role {name}".encode())


class Visitor:
    def __init__(self, folder: Path, dsn: str, preloaded: Preloaded) -> None:
        self._folder, self._dsn, self._preloaded = folder, dsn, preloaded
        path = os.pathsep.join([str(Path(sys.executable).parent), str(Embedded().bin), os.environ["PATH"]])
        self._env = clean() | {"PATH": path, "OUTRIDER_DSN": dsn, "OUTRIDER_APP": "shop:app"}
        (folder / "shop.py").write_text(SHOP)
        (folder / "sales.py").write_text("from shop import app")

    def run(self, line: str) -> None:
        """As the page has it, on this database and with free ports."""
        line = re.sub(r"postgresql://\S+", shlex.quote(self._dsn), line.partition("  #")[0].rstrip())
        for pattern, instead in FREE.items():
            line = re.sub(pattern, instead, line)
        if line.startswith("pip install "):
            named = re.findall(r"outrider\[(.+?)\]", line)
            assert named
            assert {extra for each in named for extra in each.split(",")} <= EXTRAS.keys()
        elif line.startswith("export "):
            self._env |= dict(each.split("=", 1) for each in shlex.split(line)[1:])
        elif STAYS.search(line):
            self._stays(line)
        elif line != "outrider demo":  # tests/demo
            done = self._preloaded.shell(line, self._folder, self._env)
            said = done.stdout + done.stderr
            assert done.returncode == 0 or (line.startswith("outrider doctor") and done.returncode < 3), (
                f"{line}: {said}"
            )
            assert "Traceback" not in said
            if "subscription rename" in line:
                (self._folder / "shop.py").write_text(SHOP.replace("shop.invoice", "shop.send_invoice"))

    def _stays(self, line: str) -> None:
        first, _, last = line.rpartition("&& ")
        said = self._folder / "said"
        with processes() as begin:
            command = f"exec >said 2>&1; {first and f'{first}&& '}exec env {last}"
            process = begin(["/bin/sh", "-c", command], self._folder, self._env)
            until(lambda: said.exists() and READY.search(said.read_text()), process)
            process.send_signal(signal.SIGTERM)
            process.wait(60)
        assert process.returncode in (0, -signal.SIGTERM), said.read_text()
        assert "Traceback" not in said.read_text()


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", (DOCS / f"{page}.md").read_text(), re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("page", PAGES)
def test_the_commands_on_the_page_run(page: str, database: str, tmp_path: Path, preloaded: Preloaded) -> None:
    visitor = Visitor(tmp_path, database, preloaded)
    visitor.run("outrider migrate --app shop:app")
    visitor.run("OUTRIDER_GENERATION=41 outrider migrate --app shop:app")
    visitor.run("outrider roles")
    found = "".join(blocks(page, "sh")).splitlines()
    assert len(found) == PAGES[page]
    for line in found:
        visitor.run(line)


def test_the_sql_of_roles(database: str, tmp_path: Path, preloaded: Preloaded) -> None:
    """Their logins can do what the page says; a login of before loses the rights that it had."""
    Visitor(tmp_path, database, preloaded).run("outrider roles")
    logins, change = blocks("roles", "sql")
    publish = b"select outrider.publish('orders.placed', '{}')"
    with psycopg.connect(database, autocommit=True) as owner:
        owner.execute(logins.encode())
        owner.execute(f"create role app login; {before('app')}".encode())
        owner.execute(change.encode())
        assert owner.execute(
            "select has_table_privilege('app', 'outrider.audit', 'select'), pg_has_role('app', 'outrider_worker', 'member')"
        ).fetchone() == (False, True)
    for name in ("shop_web", "shop_worker", "app"):
        with psycopg.connect(make_conninfo(database, user=name)) as conn:
            conn.execute(publish)
    for name, query in (("ada", b"select * from outrider.audit"), ("grafana", b"select payload from outrider.outbox")):
        with psycopg.connect(make_conninfo(database, user=name)) as conn:
            conn.execute(query)
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                conn.execute(publish)


def test_the_python_of_roles() -> None:
    [declared] = blocks("roles", "py")
    names: dict[str, Any] = {"Outrider": Outrider}
    exec(declared, names)
    assert names["atlas"].settings.owns == {"atlas", "maps"}


def test_the_queries_of_the_runbook(database: str) -> None:
    """The third block is run by tests/doctor/test_doctor.py."""
    failing, sessions, _ = blocks("runbook", "sql")
    columns = {"event_id", "last_error_code", "left"}, {"pid", "client_addr", "state", "wait_event", "since", "query"}
    with psycopg.connect(database) as conn:
        for query, wanted in zip((failing, sessions), columns, strict=True):
            assert {each.name for each in conn.execute(query.encode()).description or ()} == wanted


class StockChanged(Event, type="pages.stock_changed", key="article"):
    article: str


class Restocked(Event, type="pages.restocked", key="article"):
    article: str = ""


class RestockedAll(Event, type="pages.restocked_all", key="article"):
    article: str = ""


def test_the_python_of_rollups() -> None:
    """Its program is run by tests/docs/test_rollups.py; these are declared."""
    names: dict[str, Any] = {each.__name__: each for each in (StockChanged, Restocked, RestockedAll)}
    app = names["app"] = Outrider(context="shop")
    for block in blocks("rollups", "py"):
        exec(block, names)
    assert [each.name for each in app.rollups] == ["shop.restocks"]
    app.rollup(
        "shop.others",
        events=[StockChanged],
        key=["article"],
        single=Restocked,
        rollup=RestockedAll,
        notify=names["notify"],
    )


class Placed(Event, type="pages.placed", key="order"):
    order: str


async def test_the_python_of_observability(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A dead letter calls somebody; what a handler binds is on its line; metrics count the call."""
    listening, binding, metrics = blocks("observability", "py")
    registry, called = CollectorRegistry(), list[Buried]()
    monkeypatch.setattr("prometheus_client.REGISTRY", registry)
    app = Outrider(context="billing", dsn=database)
    names: dict[str, Any] = {"app": app, "call_somebody": called.append, "Placed": Placed}
    for block in (listening, binding, metrics):
        exec(block, names)

    @app.handler(Placed, name="billing.fails")
    async def fail(event: Placed) -> None:
        raise Bury("on purpose")

    with log_lines(as_json=True) as said:
        async with app:
            await app.migrate()
            async with app.connect() as conn:
                await app.publish(conn, Placed(order="A-17"))
            await app.drain()
    assert [each.subscription for each in called] == ["billing.fails"]
    told = [json.loads(line) for line in said.getvalue().splitlines()]
    assert {each.get("order") for each in told if each["event"] == "handled"} == {"A-17"}
    labels = {"type": "billing.fails", "status": "dead"}
    assert registry.get_sample_value("outrider_completed_total", labels) == 1


async def test_the_finding_of_rollout(
    database: str, tmp_path: Path, preloaded: Preloaded, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twelve events of a generation that no worker takes, because that of 42 is strict."""
    [shown] = blocks("rollout", "console")
    command, *finding = shown.splitlines()
    old, new = (Outrider(context="shop", dsn=database, generation=n, generations="strict") for n in (41, 42))
    for app in (old, new):

        @app.handler(Placed, name="shop.invoice")
        async def invoice(event: Placed) -> None: ...

    async with old, new:
        await old.migrate()
        async with old.connect() as conn, conn.transaction():
            await old.publish_many(conn, [Placed(order=f"{n}") for n in range(12)])
        async with new.worker():
            env = clean() | {"OUTRIDER_DSN": database, "COLUMNS": "200"}
            done = await asyncio.to_thread(preloaded.shell, command.removeprefix("$ "), tmp_path, env)
    said = [" ".join(line.split()) for line in done.stdout.splitlines()]
    assert {" ".join(line.split()) for line in finding} <= {*said}, done.stdout + done.stderr
