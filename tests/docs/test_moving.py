"""docs/moving-from-*.md cannot lie: their programs and commands run against the other library's real tables and queues.

After a deliberate change: OUTRIDER_UPDATE_SNAPSHOT=1 pytest -p no:xdist --tier verify tests/docs/test_moving.py
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlencode

import psycopg
import pytest
import redis
from psycopg.conninfo import conninfo_to_dict
from tests.brokers import HOST, RedisServer, free_port
from tests.processes import clean

from outrider.postgres.embedded import Embedded

pytestmark = pytest.mark.verify

DOCS = Path(__file__).parents[2] / "docs"
LIBRARIES = Path(sys.prefix) / "moving" / "bin"
"""The environment of the other libraries, in which Outrider is installed too."""
BLOCK = re.compile(r"^```console\n(.*?)^```$", re.DOTALL | re.MULTILINE)
COMMAND = re.compile(r"^\$ (.*)\n", re.MULTILINE)
FILE = re.compile(r'^```py title="(.*?)"\n(.*?)^```$', re.DOTALL | re.MULTILINE)
VARIES = re.compile(r"^.*(rows brought|bringing rows).*\d:\d\d:\d\d\n|[ ]+$", re.MULTILINE)
SETTINGS = """import os
from psycopg.conninfo import conninfo_to_dict

parts = conninfo_to_dict(os.environ["DATABASE_URL"])
DATABASES = {"default": {"ENGINE": "django.db.backends.postgresql", "NAME": parts["dbname"], "USER": parts["user"],
                         "HOST": parts["host"], "PORT": parts.get("port", "")}}
SECRET_KEY = "secret"
USE_TZ = True
"""
SHOP = """import asyncio, importlib, inspect, json, os, signal, subprocess, sys, time

if "DJANGO_SETTINGS_MODULE" in os.environ:
    import django

    django.setup()


async def work(app):
    async with app:
        print(await app.drain())


async def pgq(old):
    queuer, conn = await old.create(), await old.asyncpg.connect(old.DSN)
    running = asyncio.create_task(queuer.run())
    due = "select count(*) from pgqueuer where status = 'picked' or status = 'queued' and execute_after < now()"
    while await conn.fetchval(due):
        await asyncio.sleep(0.02)
    queuer.shutdown.set()
    await running


def celery(old):
    code = "import old; old.celery.conf.worker_redirect_stdouts = False; "
    code += "old.celery.worker_main(['worker', '-P', 'solo', '-l', 'critical', '--without-gossip', '--without-mingle'])"
    worker = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    redis = old.celery.broker_connection().default_channel.client

    def waits_for_its_time(held):
        return json.loads(held)[0]["headers"]["eta"] is not None

    while redis.llen("celery") or not all(map(waits_for_its_time, redis.hvals("unacked"))):
        assert worker.poll() is None
        time.sleep(0.02)
    worker.send_signal(signal.SIGTERM)
    print("".join(line for line in worker.communicate()[0].splitlines(True) if line.startswith("Celery: ")), end="")


if sys.argv[1] == "work":
    asyncio.run(work(importlib.import_module("new").app))
elif sys.argv[1] == "pgq":
    asyncio.run(pgq(importlib.import_module("old")))
elif sys.argv[1] == "celery":
    celery(importlib.import_module("old"))
else:
    placed = importlib.import_module(sys.argv[1]).place(int(sys.argv[2]))
    if inspect.isawaitable(placed):
        asyncio.run(placed)
"""
"""`shop.py old 1`, `shop.py new 1`: place order 1 with that code. `shop.py work`: do what is due.

`shop.py pgq`: PgQueuer does what is due. `pgq run --mode drain` would wait for deferred jobs too."""


class Moving:
    """One page, followed in a folder."""

    def __init__(self, library: str, folder: Path, dsn: str, **env: str) -> None:
        if not LIBRARIES.exists():
            pytest.fail("the other libraries are not installed: make .venv/moving/.ready")
        self.page = DOCS / f"moving-from-{library}.md"
        self.folder, self.dsn = folder, dsn
        path = os.pathsep.join([str(LIBRARIES), str(Embedded().bin), os.environ["PATH"]])
        parts = conninfo_to_dict(dsn)
        url = f"postgresql:///{parts.pop('dbname')}?{urlencode(parts)}"  # asyncpg knows no other form
        self.env = clean() | {"PATH": path, "OUTRIDER_DSN": dsn, "DATABASE_URL": url, "OUTRIDER_APP": "new:app"}
        self.env |= {"COLUMNS": "100", "PYTHONPATH": str(folder)} | env
        files: dict[str, str] = {}
        for name, text in FILE.findall(self.page.read_text()):
            files[name] = files[name] + "\n\n" + text if name in files else text
        for name, text in files.items():
            (folder / name).write_text(text)
        (folder / "shop.py").write_text(SHOP)
        (folder / "settings.py").write_text(SETTINGS)

    def said(self, command: str) -> str:
        """In a process group of its own: what it has started ends with it."""
        pipe = subprocess.PIPE
        running = subprocess.Popen(
            command, shell=True, cwd=self.folder, env=self.env, stdout=pipe, stderr=pipe, text=True, process_group=0
        )
        try:
            out, err = running.communicate(timeout=200)
        except subprocess.TimeoutExpired:
            os.killpg(running.pid, signal.SIGKILL)
            raise AssertionError((command, *running.communicate())) from None
        assert running.returncode == 0, (command, out, err)
        return VARIES.sub("", out + err)

    def follow(self) -> None:
        page = self.page.read_text()

        def played(block: re.Match[str]) -> str:
            return (
                "```console\n" + "".join(f"$ {each}\n{self.said(each)}" for each in COMMAND.findall(block[1])) + "```"
            )

        told = BLOCK.sub(played, page)
        if os.environ.get("OUTRIDER_UPDATE_SNAPSHOT") == "1":
            self.page.write_text(told)
        else:
            assert told == page

    def rows(self, query: str) -> list[tuple[object, ...]]:
        with psycopg.connect(self.dsn) as conn:
            return conn.execute(query.encode()).fetchall()


def test_from_procrastinate(tmp_path: Path, empty_database: str) -> None:
    moving = Moving("procrastinate", tmp_path, empty_database)
    moving.follow()
    todo = [("remind", order) for order in (1, 2, 3)]
    given_back = "select task_name, (args ->> 'order')::int from procrastinate_jobs where status = 'todo' order by id"
    assert moving.rows(given_back) == todo


def test_rows_of_procrastinate_keep_what_they_ask_for(tmp_path: Path, empty_database: str) -> None:
    """The time, the queue and the lock; and a row that an old worker has is left to it."""
    moving = Moving("procrastinate", tmp_path, empty_database)
    table = "public.procrastinate_jobs"
    for command in (
        "procrastinate --app=old.app schema --apply",
        "outrider migrate",
        f"outrider takeover start {table}",
    ):
        moving.said(command)
    with psycopg.connect(empty_database, autocommit=True) as conn:
        conn.execute("create table orders (id int)")
        moving.said("python shop.py old 1")
        conn.execute(
            "with w as (insert into procrastinate_workers default values returning id) "
            "update procrastinate_jobs set status = 'doing', worker_id = w.id from w where task_name = 'send_receipt'"
        )
        assert "1 row brought" in moving.said(f"outrider takeover cutover {table}")
        same = conn.execute(
            "select o.run_at = p.scheduled_at from outrider.job o, procrastinate_jobs p where p.task_name = 'remind'"
        ).fetchall()
        assert same == [(True,)]
        conn.execute("update procrastinate_workers set last_heartbeat = now() - interval '2 minutes'")  # it is gone
        moving.said(f"outrider takeover finish {table} --force")
        conn.execute("update outrider.job set run_at = now() + interval '1 day' where run_at > now()")
        conn.execute(
            "select outrider.enqueue('shop.remind', '{\"order\": 1}', unique_key => 'remind-1', queue => 'mail', "
            "run_at => now() + interval '1 hour')"
        )
        moving.said("outrider job run-now --type shop.old_task --yes")
        said = moving.said("python shop.py work")
        assert ("Outrider: receipt 1\n" in said, "reminder" in said) == (True, False)
        left = conn.execute("select subscription, unique_key, queue from outrider.job").fetchall()
        assert left == [("shop.remind", "remind-1", "mail")]  # not two: the lock has become the unique key


def test_from_pgqueuer(tmp_path: Path, empty_database: str) -> None:
    moving = Moving("pgqueuer", tmp_path, empty_database)
    moving.follow()
    given_back = "select entrypoint, convert_from(payload, 'UTF8') from pgqueuer where status = 'queued' order by id"
    assert moving.rows(given_back) == [("remind", f'{{"order": {order}}}') for order in (1, 2, 3)]


def test_a_row_that_a_worker_of_pgqueuer_has_is_left_to_it(tmp_path: Path, empty_database: str) -> None:
    moving = Moving("pgqueuer", tmp_path, empty_database)
    with psycopg.connect(empty_database, autocommit=True) as conn:
        conn.execute("create table orders (id int)")
        moving.said('pgq --pg-dsn "$DATABASE_URL" install')
        moving.said("outrider migrate")
        moving.said("outrider takeover start public.pgqueuer")
        moving.said("python shop.py old 1")
        conn.execute("update pgqueuer set status = 'picked', heartbeat = now() where entrypoint = 'send_receipt'")
        assert "1 row brought" in moving.said("outrider takeover cutover public.pgqueuer")
        same = "select o.run_at = p.execute_after from outrider.job o, pgqueuer p where p.entrypoint = 'remind'"
        assert moving.rows(same) == [(True,)]
        conn.execute("update pgqueuer set status = 'queued' where status = 'picked'")  # it asks for a retry
        moving.said("outrider takeover finish public.pgqueuer --force")
        assert "Outrider: receipt 1\n" in moving.said("python shop.py work")


def test_from_celery(tmp_path: Path, empty_database: str, redis_server: RedisServer) -> None:
    env = {"BROKER_URL": redis_server.url, "DJANGO_SETTINGS_MODULE": "settings"}
    moving = Moving("celery", tmp_path, empty_database, **env)
    moving.follow()
    with redis.Redis.from_url(redis_server.url) as broker:
        assert (broker.llen("celery"), broker.hlen("unacked")) == (0, 0)
    moving.env["BROKER_URL"] = f"redis://{HOST}:{free_port()}/0"
    with pytest.raises(AssertionError, match="OperationalError"):  # what the page says of on_commit
        moving.said("python shop.py old 4")
    moving.said("python shop.py new 5")
    assert moving.rows("select id from orders where id > 3 order by id") == [(4,), (5,)]
    query = "select payload ->> 'order' from outrider.job where subscription = 'shop.send_receipt'"
    assert moving.rows(query) == [("5",)]


def test_a_move_from_celery_that_ends_before_its_ack(
    tmp_path: Path, empty_database: str, redis_server: RedisServer
) -> None:
    env = {"BROKER_URL": redis_server.url, "DJANGO_SETTINGS_MODULE": "settings"}
    moving = Moving("celery", tmp_path, empty_database, **env)
    with psycopg.connect(empty_database, autocommit=True) as conn:
        conn.execute("create table orders (id int)")
    moving.said("outrider migrate")
    moving.said("python shop.py old 1")
    program = (tmp_path / "move.py").read_text()
    (tmp_path / "ends.py").write_text(program.replace("message.ack()", "raise SystemExit"))
    moving.said("python ends.py celery")
    assert moving.rows("select count(*) from outrider.job") == [(1,)]
    assert moving.said("python move.py celery") == "2 moved\n"
    jobs = "select subscription from outrider.job order by 1"
    assert moving.rows(jobs) == [("shop.remind",), ("shop.send_receipt",)]
