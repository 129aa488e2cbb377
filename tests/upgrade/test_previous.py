"""The previous release on the next one's schema: its worker, its publishers and its commands, beside those of the next.

The oracle is the database: what was published is in the log; every event has one effect or is a dead letter, in the
order of its key. The table of effects has no unique constraint, so that doubles show.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo
from tests.processes import Begin, processes, until
from tests.upgrade import shop
from tests.upgrade.previous import Pair, from_history, git, newest_migration, previous, with_next

from outrider.postgres.schema.migrate import known

pytestmark = pytest.mark.verify

ROOT = Path(__file__).parents[2]
NEWEST = known()[-1].version
MAIN = "from outrider.cli import main; main()"
MANY = """
import json, sys
from typer.testing import CliRunner
from outrider.cli.main import cli
for command in json.loads(sys.argv[1]):
    done = CliRunner().invoke(cli, command, prog_name="outrider")
    print(json.dumps([done.exit_code, done.stdout, done.stderr]))
"""
DEADLINE = 120


class Release:
    """The code of one release, on one database."""

    def __init__(self, source: Path, dsn: str, begin: Begin) -> None:
        self.source = str(source)
        self._env = {"PYTHONPATH": self.source, "OUTRIDER_DSN": dsn}
        self._begin = begin

    def start(self, *command: str) -> subprocess.Popen[str]:
        return self._begin([sys.executable, *command], Path(__file__).parent, self._env)

    def worker(self) -> subprocess.Popen[str]:
        return self.start("-P", "-c", MAIN, "worker", "--app", "shop:app")

    def publisher(self, name: str) -> subprocess.Popen[str]:
        return self.start("shop.py", "publish", name)

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        process = self.start(*command)
        out, err = process.communicate(timeout=DEADLINE)
        return subprocess.CompletedProcess(command, process.returncode, out, err)

    def command(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return self.run("-P", "-c", MAIN, *arguments)

    def say(self, *arguments: str) -> str:
        done = self.command(*arguments)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def commands(self, *lines: str) -> list[tuple[int, str, str]]:
        """One after the other in one process, most of whose time is spent with imports."""
        done = self.run("-c", MANY, json.dumps([line.split() for line in lines]))
        assert done.returncode == 0, done.stderr
        return [tuple(json.loads(line)) for line in done.stdout.splitlines()]


class Bench:
    """Both releases on one database, and what the database says."""

    def __init__(
        self, conn: psycopg.Connection[Any], old: Release, new: Release, bound: tuple[Release, Release]
    ) -> None:
        self.conn = conn
        self.old = old
        self.new = new
        self.bound, self.bound_new = bound
        """Both as a role that has the rights of the old code's guide, and no others."""

    def rows(self, query: str, *params: object) -> list[Any]:
        return self.conn.execute(query.encode(), params).fetchall()

    def one(self, query: str, *params: object) -> Any:
        [(value,)] = self.rows(query, *params)
        return value

    def done_by(self, release: Release) -> set[str]:
        """Whose events this code has handled: the publishers' names."""
        query = "select distinct split_part(customer, ' ', 1) from effect where code = %s"
        return {name for (name,) in self.rows(query, release.source)}

    def alive(self) -> set[int]:
        return {pid for (pid,) in self.rows("select pid from outrider.worker")}

    def drawn(self) -> int:
        return int(self.one("select coalesce(max(seq), 0) from outrider.outbox"))

    def handled_after(self, release: Release, seq: int) -> bool:
        """Whether this code has handled, at once and in a retry, what was published after that event."""
        query = """select count(distinct attempt) from effect as e join outrider.outbox as o
                   on o.payload->>'customer' = e.customer and (o.payload->>'n')::int = e.n
                   where e.code = %s and o.seq > %s"""
        return bool(self.one(query, release.source, seq) == 2)

    def shared_dead_letter(self, *pids: int) -> bool:
        """One whose attempts were made by all of these processes."""
        query = """select exists (select from outrider.delivery as d where d.status = 'failed' and %s::text[] <@ array(
                       select split_part(entry->>'worker', ':', 2) from jsonb_array_elements(d.failure_history) as entry))"""
        return bool(self.one(query, [str(pid) for pid in pids]))

    def at_rest(self) -> bool:
        return bool(
            self.one(
                """select (select count(*) from outrider.outbox)
                        = (select count(*) from outrider.event_handled where handler_name = 'shop.effect')
                        + (select count(*) from outrider.delivery where status = 'failed')
                   and not exists (select from outrider.delivery where status <> 'failed')"""
            )
        )

    def verify(self, published: dict[str, int]) -> None:
        """What each publisher says, and one effect or one dead letter for each event of it, in order."""
        expected = {f"{name} {customer}": n for name, n in published.items() for customer in range(shop.CUSTOMERS)}
        logged = "select payload->>'customer', (payload->>'n')::int from outrider.outbox order by seq"
        assert _by_customer(self.rows(logged)) == {who: list(range(1, n + 1)) for who, n in expected.items()}
        buried = "select o.payload->'n' from outrider.delivery join outrider.outbox as o using (seq)"
        dead = [n for (n,) in self.rows(buried)]
        assert dead
        assert all(n % 11 == 7 for n in dead)
        effects = "select customer, n from effect where customer is not null order by id"
        assert _by_customer(self.rows(effects)) == {
            who: [n for n in range(1, last + 1) if n % 11 != 7] for who, last in expected.items()
        }
        assert self.rows("select distinct attempts, jsonb_array_length(failure_history) from outrider.delivery") == [
            (3, 3)
        ]
        assert self.rows("select n from effect where attempt <> (case n %% 5 when 3 then 2 else 1 end)", *()) == []


def _by_customer(rows: list[Any]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for customer, n in rows:
        found.setdefault(customer, []).append(n)
    return found


def end(process: subprocess.Popen[str]) -> str:
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=DEADLINE)
    assert process.returncode == 0, err
    return out


def rounds(publisher: subprocess.Popen[str], release: Release) -> int:
    said = json.loads(end(publisher))
    assert said["code"] == release.source
    return int(said["rounds"])


@pytest.fixture(scope="module", params=["history"] if NEWEST > 1 else ["rolling", "stop"])
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    """The previous release and this tree; as long as there is one migration, this tree and one that follows it."""
    folder = tmp_path_factory.mktemp(request.param)
    if request.param != "history":
        return with_next(ROOT, request.param, folder)
    if not (ROOT / ".git").exists():
        pytest.skip("not a clone of the repository: the previous release is in its history only")
    return from_history(ROOT, folder)


@pytest.fixture
def no_stop(pair: Pair) -> None:
    if pair.stop:
        pytest.skip("the workers must be stopped between these releases")


@pytest.fixture
def bench(empty_database: str, pair: Pair) -> Iterator[Bench]:
    with psycopg.connect(empty_database, autocommit=True) as conn:
        role = f"app_{conn.info.dbname}"
        conn.execute(f"create role {role} login".encode())
        conn.execute(
            """create table effect (
                   id bigint generated always as identity, customer text, n int, code text, pid int, attempt int)"""
        )
        with processes() as begin:
            yield Bench(
                conn,
                Release(pair.old / "src", empty_database, begin),
                Release(pair.new / "src", empty_database, begin),
                (
                    Release(pair.old / "src", make_conninfo(empty_database, user=role), begin),
                    Release(pair.new / "src", make_conninfo(empty_database, user=role), begin),
                ),
            )
        made = "select rolname from pg_roles where starts_with(rolname, current_database() || '_')"
        for name in (role, *(name for (name,) in conn.execute(made).fetchall())):
            conn.execute(f"drop owned by {name}; drop role {name}".encode())


def grant_as_documented(bench: Bench) -> None:
    """By the old release's `outrider roles`."""
    prefix = f"{bench.conn.info.dbname}_"
    bench.conn.execute(bench.old.say("roles", "--sql", "--prefix", prefix).encode())
    role = f"app_{bench.conn.info.dbname}"
    bench.conn.execute(f"grant {prefix}producer, {prefix}worker, {prefix}operator to {role}".encode())
    bench.conn.execute(f"grant insert on effect to {role}".encode())


def migrate_for_both(bench: Bench) -> None:
    """Up to where both releases work."""
    bench.old.say("migrate", "--app", "shop:app")
    bench.new.say("migrate", "--phase", "pre", "--app", "shop:app")


def test_each_release_runs_its_own_code(bench: Bench, pair: Pair) -> None:
    script = "import outrider; from outrider.postgres.statement import migrations as of"
    where = f"{script}; print(outrider.__file__, int([*of()][-1][0][:4]))"
    for release, tree, newest in ((bench.old, pair.old, pair.at), (bench.new, pair.new, pair.newest)):
        file, version = release.run("-c", where).stdout.split()
        assert file == str(tree / "src" / "outrider" / "__init__.py")
        assert int(version) == newest
    assert pair.at < pair.newest


@pytest.mark.timeout(300)
def test_both_releases_side_by_side(bench: Bench, no_stop: None) -> None:
    old, new = bench.old, bench.new
    migrate_for_both(bench)
    workers = [old.worker(), new.worker()]
    publishers = [old.publisher("old"), new.publisher("new")]
    for process in (*workers, *publishers):
        until(lambda: bench.done_by(old) == bench.done_by(new) == {"old", "new"}, process)
    until(lambda: bench.shared_dead_letter(*(worker.pid for worker in workers)), publishers[0])
    until(lambda: bench.alive() == {worker.pid for worker in workers}, workers[0])
    published = {"old": rounds(publishers[0], old), "new": rounds(publishers[1], new)}
    until(bench.at_rest, workers[0])
    for worker in workers:
        end(worker)
    bench.verify(published)
    assert bench.alive() == set()


@pytest.mark.timeout(300)
def test_a_migration_beneath_a_running_worker(bench: Bench, no_stop: None) -> None:
    """Under load, without a pause, and with the rights that it always had."""
    old, new = bench.old, bench.new
    old.say("migrate", "--app", "shop:app")
    grant_as_documented(bench)
    worker, publisher = bench.bound.worker(), bench.bound.publisher("old")
    until(lambda: bench.handled_after(old, 0), worker)
    until(lambda: bench.alive() == {worker.pid}, worker)
    assert "pending" in new.say("migrate", "status")

    said = new.say("migrate", "--phase", "pre", "--app", "shop:app")
    assert ": applied" in said
    assert "shop.effect: unchanged" in said
    after = bench.drawn()
    until(lambda: bench.handled_after(old, after), worker)
    migrated_at = bench.one("select max(applied_at) from outrider.migration")
    until(lambda: bench.one("select seen_at > %s from outrider.worker", migrated_at), worker)

    beside = new.worker()
    until(lambda: bench.handled_after(new, after), beside)
    end(worker)
    after = bench.drawn()
    until(lambda: bench.handled_after(new, after), beside)
    new.say("migrate")
    assert "pending" not in new.say("migrate", "status")
    published = {"old": rounds(publisher, old)}
    until(bench.at_rest, beside)
    end(beside)
    bench.verify(published)


@pytest.mark.timeout(300)
def test_a_migration_that_needs_a_stop(bench: Bench, pair: Pair) -> None:
    """It is refused beside a running worker. Publishers go on, and the new worker runs with the rights that the old one had.
    Jobs of every state are there afterwards."""
    if not pair.stop:
        pytest.skip("no stop is needed between these releases")
    old, new = bench.old, bench.new
    old.say("migrate", "--app", "shop:app")
    grant_as_documented(bench)
    bench.rows("select outrider.enqueue('shop.chore', jsonb_build_object('n', n)) from unnest('{1,13}'::int[]) as n")
    worker, publisher = bench.bound.worker(), bench.bound.publisher("old")
    until(lambda: bench.handled_after(old, 0), worker)
    until(lambda: bench.rows("select n from effect where customer is null") == [(1,)], worker)
    until(lambda: bench.alive() == {worker.pid}, worker)
    before = bench.one("select max(version) from outrider.migration")
    refused = new.command("migrate", "--phase", "pre", "--app", "shop:app")
    assert (refused.returncode, refused.stdout) == (1, "")
    assert f":{worker.pid} " in refused.stderr
    assert "stop them" in refused.stderr
    assert bench.one("select max(version) from outrider.migration") == before

    bench.rows("select outrider.pause('shop.chore')")
    bench.rows(
        """select outrider.enqueue('shop.chore', '{"n": 2}'), outrider.enqueue('shop.chore', '{"n": 3}', unique_key => 'u'),
                  outrider.enqueue('shop.chore', '{"n": 4}', run_at => now() + interval '1 hour')"""
    )
    end(worker)
    said = new.say("migrate", "--app", "shop:app")
    assert ": applied" in said
    assert "shop.chore: unchanged" in said
    jobs = "select payload -> 'n', status, coalesce(last_error, waits_for, unique_key) from outrider.job order by 1"
    assert bench.rows(jobs) == [
        (2, "pending", None), (3, "pending", "u"), (4, "pending", "time"), (13, "failed", "RuntimeError: every time"),
    ]  # fmt: skip
    back = bench.bound.command("worker", "--app", "shop:app")
    assert (back.returncode, "breaks older code" in back.stderr) == (1, True)

    after = bench.drawn()
    beside = bench.bound_new.worker()
    until(lambda: bench.handled_after(new, after), beside)
    assert bench.rows(jobs)[0][:2] == (2, "pending"), "it is paused"
    bench.rows("select outrider.resume('shop.chore')")
    until(lambda: [row[0] for row in bench.rows(jobs)] == [4, 13], beside)
    published = {"old": rounds(publisher, old)}
    until(bench.at_rest, beside)
    end(beside)
    bench.verify(published)
    assert bench.rows("select n from effect where customer is null order by n") == [(1,), (2,), (3,)]


@pytest.mark.timeout(300)
def test_the_new_code_before_the_migration(bench: Bench, pair: Pair) -> None:
    """Its web processes publish, its worker says what is missing, and nothing that was published is lost."""
    old, new = bench.old, bench.new
    old.say("migrate", "--app", "shop:app")
    publisher = new.publisher("new")
    until(bench.drawn, publisher)
    worker, status, *others = new.commands(
        "worker --app shop:app", "migrate status", "uninstall --dry-run", "subscription list",
        "subscription pause shop.effect", "subscription resume shop.effect",
    )  # fmt: skip
    needs = f"at version {pair.at}, and this Outrider needs version {pair.needed}: run outrider migrate"
    how = "when older workers are stopped" if pair.stop else "with --phase pre while older workers are running"
    assert worker == (1, "", f'outrider: the schema "outrider" is {needs}; {how}\n')
    assert (status[0], "pending" in status[1], status[2]) == (0, True, "")
    for code, out, err in others:
        assert (code, out, err.count("\n")) == (1, "", 1), err
        assert f"is at version {pair.at}" in err
        assert "run outrider migrate" in err
    until(lambda: bench.one("select max((payload->>'n')::int) from outrider.outbox") > 20, publisher)
    published = {"new": rounds(publisher, new)}

    new.say("migrate")
    process = new.worker()
    until(bench.at_rest, process)
    end(process)
    bench.verify(published)


def test_the_previous_commands_after_the_pre_phase(bench: Bench, pair: Pair, no_stop: None) -> None:
    old = bench.old
    migrate_for_both(bench)
    functions = """select array_agg(pg_get_functiondef(p.oid) order by p.oid) from pg_proc as p
                   where p.pronamespace = 'outrider'::regnamespace"""
    before = bench.one(functions)
    *done, refused = old.commands(
        "migrate --app shop:app", "migrate status --json", "subscription list", "subscription pause shop.effect",
        "subscription resume shop.effect", "subscription rename shop.reader shop.audit", "subscription retire shop.audit",
        "uninstall --dry-run",
    )  # fmt: skip
    assert [(code, err) for code, _, err in done] == [(0, "")] * 7
    migrated, status, listed = (out for _, out, _ in done[:3])
    assert ": applied" not in migrated
    assert "shop.effect: unchanged" in migrated
    assert bench.one(functions) == before, "the previous release has put its functions back"
    assert json.loads(status)["migrations"][-1]["version"] == pair.needed
    assert "shop.effect" in listed
    assert (refused[0], "use the release that migrated it" in refused[2]) == (1, True)


def test_the_previous_commands_after_a_breaking_step(bench: Bench, pair: Pair) -> None:
    """They change nothing, and say what to install."""
    if not pair.breaks:
        pytest.skip("nothing is broken between these releases")
    bench.new.say("migrate", "--app", "shop:app")
    for code, _, err in bench.old.commands(
        "migrate --app shop:app", "subscription list", "subscription pause shop.effect", "status"
    ):
        assert (code, "Upgrade outrider to the release that migrated it" in err) == (1, True), err


@pytest.mark.parametrize("code", ["old", "new"])
def test_what_an_app_does_after_the_pre_phase(bench: Bench, code: str, pair: Pair) -> None:
    bench.old.say("migrate")
    bench.new.say("migrate", "--phase", "pre")
    done = {"old": bench.old, "new": bench.new}[code].run("shop.py", "tour")
    if pair.stop and code == "old":
        assert "Upgrade outrider to the release that migrated it" in done.stderr
        return
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {
        "code": {"old": bench.old, "new": bench.new}[code].source,
        "registered": [["shop.chore", "created"], ["shop.effect", "created"], ["shop.reader", "created"]],
        "read": [1, 3, 7, 8],
        "replayed": ["replayed"],
        "again": 1,
    }
    assert bench.rows("select n from effect order by n") == [(1,), (3,), (7,), (8,)]


# Which commit that is


@pytest.fixture
def history(tmp_path: Path) -> Path:
    """Three commits: one migration, a second one, and something else."""
    folder = tmp_path / "src/outrider/postgres/migrations"
    folder.mkdir(parents=True)
    git(tmp_path, "init", "--quiet")
    for name in ("migrations/0001_log.sql", "migrations/0002_more.sql", "other.py"):
        (folder.parent / name).write_text("")
        commit(tmp_path, name)
    return tmp_path


def commit(folder: Path, message: str) -> None:
    who = ("-c", "user.name=tests", "-c", "user.email=tests@localhost")
    git(folder, "add", ".")
    git(folder, *who, "commit", "--quiet", "--no-gpg-sign", "--message", message)


def subject(folder: Path, found: str) -> str:
    return git(folder, "log", "-1", "--format=%s", found).decode().strip()


def test_the_newest_commit_with_fewer_migrations(history: Path) -> None:
    assert subject(history, previous(history, 2)) == "migrations/0001_log.sql"
    assert subject(history, previous(history, 3)) == "other.py", "the newest migration is not committed yet"
    with pytest.raises(LookupError, match="no commit has fewer than 1 migrations"):
        previous(history, 1)


def test_a_release_is_preferred(history: Path) -> None:
    git(history, "tag", "v0.1.0", "HEAD^")
    assert subject(history, previous(history, 3)) == "migrations/0002_more.sql"
    assert subject(history, previous(history, 2)) == "migrations/0001_log.sql", "the release has as many"


def test_a_shallow_clone_says_what_to_fetch(history: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    clone = tmp_path_factory.mktemp("clone")
    git(history, "clone", "--quiet", "--depth", "1", f"file://{history}", str(clone))
    with pytest.raises(LookupError, match="git fetch --unshallow --tags"):
        previous(clone, 2)
    git(clone, "fetch", "--quiet", "--unshallow", "--tags")
    assert newest_migration(clone, previous(clone, 2)) == 1
