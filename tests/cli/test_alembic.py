"""`outrider migrate --alembic`: what it writes, and that the real Alembic runs it, forth and back, on every driver."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict
from sqlalchemy import URL
from tests.cli import inprocess
from tests.cli.conftest import Run
from tests.cli.test_migrate import APP, NEWEST, OLD_WORKER, dump, next_release, psql, query, schemas
from tests.preloaded import Preloaded

from outrider.cli.alembic import find_project
from outrider.errors import ConfigError
from outrider.postgres.schema.migrate import known

__all__ = ["next_release"]

MINE = '''
"""mine"""
from typing import Sequence, Union
from alembic import op

revision: str = "{revision}"
down_revision: Union[str, Sequence[str], None] = {down!r}
branch_labels = None
depends_on = None

def upgrade() -> None:
    op.execute("{upgrade}")

def downgrade() -> None:
    op.execute("{downgrade}")
'''


@pytest.fixture
def database(whole_database: str) -> str:
    return whole_database


def mine(revision: str, down: object = None, upgrade: str = "select 1", downgrade: str = "select 1") -> str:
    return MINE.format(revision=revision, down=down, upgrade=upgrade, downgrade=downgrade)


class Project:
    """A real Alembic project in a folder, with one revision of its own."""

    def __init__(self, folder: Path, dsn: str, driver: str, preloaded: Preloaded) -> None:
        self.folder = folder
        self._preloaded = preloaded
        self.dsn = dsn
        self._alembic("init", "--template", "async" if driver == "asyncpg" else "generic", "alembic")
        ini = folder / "alembic.ini"
        text = ini.read_text().replace("driver://user:pass@localhost/dbname", _url(dsn, driver).replace("%", "%%"))
        ini.write_text(text)
        self.versions = folder / "alembic" / "versions"
        self.add("first", mine("first", None, "create table mine (n int)", "drop table mine"))

    def add(self, name: str, text: str) -> None:
        (self.versions / f"{name}.py").write_text(text)

    def written(self) -> list[str]:
        return sorted(file.name.partition("_")[2] for file in self.versions.glob("*_outrider_*.py"))

    def run(self, *arguments: str) -> str:
        done = self._alembic(*arguments)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def fail(self, *arguments: str) -> str:
        done = self._alembic(*arguments)
        assert done.returncode != 0, done.stdout
        return done.stderr

    def _alembic(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return self._preloaded.run(["python", "-m", "alembic", *arguments], self.folder, os.environ)


def _url(dsn: str, driver: str) -> str:
    parts = {name: str(value) for name, value in conninfo_to_dict(dsn).items()}
    query = {"host": parts["host"], "port": parts["port"]}
    made = URL.create(f"postgresql+{driver}", username=parts["user"], database=parts["dbname"], query=query)
    return made.render_as_string(hide_password=False)


@pytest.fixture
def project(tmp_path: Path, empty_database: str, preloaded: Preloaded, request: pytest.FixtureRequest) -> Project:
    (tmp_path / "shop.py").write_text(APP)
    return Project(tmp_path, empty_database, getattr(request, "param", "psycopg"), preloaded)


def handled(dsn: str) -> None:
    """As if everything had been read."""
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute("update outrider.cursor set seq = (select coalesce(max(seq), 0) from outrider.outbox)")


def ledger(dsn: str) -> list[tuple[int, str]]:
    return query(dsn, "select version, applied_by from outrider.migration order by version")


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "project",
    ["psycopg", pytest.param("psycopg2", marks=pytest.mark.long), pytest.param("asyncpg", marks=pytest.mark.verify)],
    indirect=True,
)
def test_forth_and_back_on_every_driver(outrider: Run, project: Project, database: str) -> None:
    done = outrider("migrate", "--alembic", "--app", "shop:app")
    assert (done.returncode, done.stderr, done.stdout.count("wrote ")) == (0, "", 2)
    assert done.stdout.endswith("next: alembic upgrade head\n")
    assert project.written() == [f"outrider_{NEWEST:04}.py", "outrider_subscriptions.py"]

    project.run("upgrade", "head")
    dsn = project.dsn
    outrider("migrate", "--app", "shop:app", "--dsn", database)
    assert dump(dsn) == dump(database)
    assert [version for version, _ in ledger(dsn)] == [step.version for step in known()]
    assert all(by.startswith("outrider ") and by.endswith(" by Alembic") for _, by in ledger(dsn))
    registered = "select name, event_types, partitions from outrider.subscription order by name"
    assert query(dsn, registered) == [("shop.all", None, 1), ("shop.audit", ["cli.placed"], 4)]
    status = json.loads(outrider("migrate", "status", "--dsn", dsn, "--json").stdout)
    assert all(row["applied_at"] for row in status["migrations"])
    again = outrider("migrate", "--app", "shop:app", "--dsn", dsn).stdout
    assert f"up to date: version {NEWEST}" in again
    assert again.count("unchanged") == 2

    query(dsn, """select outrider.publish('cli.placed', '{"n": 1}')""")
    refused = project.fail("downgrade", "base")
    assert "shop.all: 1 unread, 0 waiting, 0 dead letters; shop.audit: 1 unread" in refused
    assert "outrider uninstall --force" in refused
    assert query(dsn, "select count(*) from outrider.outbox") == [(1,)]
    handled(dsn)
    project.run("downgrade", "base")
    assert schemas(dsn) == {"public", "information_schema"}
    assert query(dsn, "select to_regclass('mine')") == [(None,)]


@pytest.mark.verify
def test_offline_the_script_does_the_same(outrider: Run, project: Project, database: str) -> None:
    """With an env.py that leaves the placeholders of the driver as they are, where a % would be doubled."""
    env = project.folder / "alembic" / "env.py"
    env.write_text(env.read_text().replace('dialect_opts={"paramstyle": "named"},', ""))
    outrider("migrate", "--alembic", "--app", "shop:app")
    psql(project.dsn, project.run("upgrade", "head", "--sql"))
    outrider("migrate", "--app", "shop:app", "--dsn", database)
    assert dump(project.dsn) == dump(database)
    assert query(project.dsn, "select name from outrider.subscription order by 1") == [("shop.all",), ("shop.audit",)]
    assert "up to date" in outrider("migrate", "--app", "shop:app", "--dsn", project.dsn).stdout

    back = project.run("downgrade", "head:base", "--sql")
    query(project.dsn, """select outrider.publish('cli.placed', '{"n": 1}')""")
    with pytest.raises(AssertionError, match="subscriptions still want"):
        psql(project.dsn, back)
    assert query(project.dsn, "select count(*) from outrider.outbox") == [(1,)]
    handled(project.dsn)
    psql(project.dsn, back)
    assert schemas(project.dsn) == {"public", "information_schema"}


@pytest.mark.verify
def test_it_is_part_of_alembics_transaction(outrider: Run, project: Project) -> None:
    outrider("migrate", "--alembic")
    [ours] = [each.id for each in find_project(project.versions).revisions if each.version]
    project.add("broken", mine("broken", ours, "select 1 / 0"))
    assert "division by zero" in project.fail("upgrade", "head")
    assert schemas(project.dsn) == {"public", "information_schema"}
    assert query(project.dsn, "select to_regclass('mine')") == [(None,)]


@pytest.mark.verify
def test_another_schema_beside_the_first(outrider: Run, project: Project) -> None:
    for schema in ("outrider", "events"):
        assert outrider("migrate", "--alembic", "--schema", schema).returncode == 0
    project.run("upgrade", "head")
    assert schemas(project.dsn) == {"public", "information_schema", "outrider", "events"}
    project.run("downgrade", "-1")
    assert schemas(project.dsn) == {"public", "information_schema", "outrider"}


@pytest.mark.verify
def test_only_what_no_revision_has_is_written(outrider: Run, project: Project) -> None:
    outrider("migrate", "--alembic", "--app", "shop:app")
    again = outrider("migrate", "--alembic", "--app", "shop:app")
    assert again.stdout == (
        f'nothing to write: the revisions already bring the schema "outrider" to version {NEWEST}\n'
    )
    assert len(project.written()) == 2
    (project.folder / "shop.py").write_text(APP + "\napp.reader(name='shop.more')\n")
    written = json.loads(outrider("migrate", "--alembic", "--app", "shop:app", "--json").stdout)["written"]
    [text] = [Path(file).read_text() for file in written]
    assert text.count(".register(") == 1
    project.run("upgrade", "head")
    assert query(project.dsn, "select count(*) from outrider.subscription") == [(3,)]


def alembic_of_the_next_release(project: Project, request: pytest.FixtureRequest, *arguments: str) -> None:
    request.getfixturevalue("next_release")
    done = inprocess.run(project.folder, "migrate", "--alembic", *arguments)
    assert done.returncode == 0, done.stderr


@pytest.mark.verify
def test_an_upgrade_of_a_schema_that_is_there(outrider: Run, project: Project, request: pytest.FixtureRequest) -> None:
    outrider("migrate", "--dsn", project.dsn)
    alembic_of_the_next_release(project, request, "--after", str(NEWEST))
    project.run("upgrade", "head")
    assert [version for version, _ in ledger(project.dsn)] == list(range(1, NEWEST + 3))
    assert query(project.dsn, "select to_regclass('outrider.broken') is not null") == [(True,)]
    refused = project.fail("downgrade", "-1")
    assert "go forward only" in refused
    assert "outrider uninstall" in refused
    assert "outrider" in schemas(project.dsn)


@pytest.mark.verify
def test_where_outrider_migrate_has_been_before(
    outrider: Run, project: Project, request: pytest.FixtureRequest
) -> None:
    outrider("migrate", "--dsn", project.dsn)
    alembic_of_the_next_release(project, request)
    refused = project.fail("upgrade", "head")
    assert f'the schema "outrider" is at version {NEWEST}, and this revision begins after version 0' in refused
    assert inprocess.run(project.folder, "migrate", "--dsn", project.dsn).returncode == 0
    before = ledger(project.dsn)
    project.run("upgrade", "head")
    assert ledger(project.dsn) == before


@pytest.mark.verify
@pytest.mark.timeout(300)
def test_an_upgrade_in_two_phases(outrider: Run, project: Project, request: pytest.FixtureRequest) -> None:
    """Each phase is a revision of its own, and a live worker holds up the second one."""
    outrider("migrate", "--alembic")
    project.run("upgrade", "head")
    psql(project.dsn, OLD_WORKER)
    request.getfixturevalue("next_release")
    assert inprocess.run(project.folder, "migrate", "--alembic", "--phase", "pre").returncode == 0
    again = inprocess.run(project.folder, "migrate", "--alembic", "--phase", "pre").stdout
    assert again == 'nothing to write: the revisions already have the pre phase of the schema "outrider"\n'
    assert inprocess.run(project.folder, "migrate", "--alembic").returncode == 0
    assert project.written() == [f"outrider_{NEWEST + n:04}.py" for n in range(3)]

    project.run("upgrade", "+1")
    refused = project.fail("upgrade", "head")
    assert f"migration {NEWEST + 2} breaks code that does not know it" in refused
    assert "db-7:41 (outrider 0.0.9)" in refused
    assert ledger(project.dsn)[-1][0] == NEWEST + 1
    psql(project.dsn, "delete from outrider.worker")
    project.run("upgrade", "head")
    assert ledger(project.dsn)[-1][0] == NEWEST + 2


@pytest.mark.verify
@pytest.mark.timeout(300)
@pytest.mark.long
def test_what_is_written_passes_ruff_and_mypy(outrider: Run, project: Project) -> None:
    outrider("migrate", "--alembic", "--app", "shop:app")
    ours = [str(file) for file in project.versions.glob("*_outrider_*.py")]
    cache = str(Path(__file__).parents[2] / ".mypy_cache" / "alembic")
    for command in (
        ["ruff", "check", "--isolated"],
        ["ruff", "format", "--isolated", "--check"],
        ["mypy", "--strict", "--cache-dir", cache],
    ):
        done = subprocess.run(
            [sys.executable, "-m", *command, *ours], cwd=project.folder, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr


# Finding the project and its head


@pytest.mark.verify
def test_help_and_usage(outrider: Run) -> None:
    assert "--alembic" in outrider("migrate", "--help").stdout
    for wrong in (["--alembic", "--sql"], ["--alembic", "--dry-run"], ["--head", "x"], ["--versions", "x"]):
        done = outrider("migrate", *wrong)
        assert (done.returncode, done.stdout) == (2, ""), wrong


@pytest.mark.verify
def test_several_heads_need_a_choice(outrider: Run, tmp_path: Path) -> None:
    versions = tmp_path / "versions"
    versions.mkdir()
    for name, down in (("base", None), ("left", "base"), ("right", "base"), ("more", "right")):
        (versions / f"{name}.py").write_text(mine(name, down))
    command = ("migrate", "--alembic", "--versions", "versions")
    refused = outrider(*command)
    assert (refused.returncode, refused.stderr.count("\n")) == (1, 1)
    assert "there are several heads: left, more; say which one to follow with --head" in refused.stderr
    for wrong in ("right", "nobody"):
        assert f"--head {wrong} is not one of the heads: left, more" in outrider(*command, "--head", wrong).stderr
    assert not list(versions.glob("*outrider*"))
    assert outrider(*command, "--head", "mo").returncode == 0
    [written] = versions.glob("*outrider*")
    assert 'down_revision = "more"' in written.read_text()


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ALEMBIC_CONFIG", raising=False)
    return tmp_path


def heads(folder: Path | None = None) -> str | None:
    head = find_project(folder).head(None)
    return None if head is None else head.id


@pytest.mark.verify
def test_a_head_is_what_no_other_follows(here: Path) -> None:
    assert heads(here) is None
    texts = {
        "plain": 'revision = "a"\ndown_revision = None\n',
        "annotated": 'revision: str = "b"\ndown_revision: str | None = "a"\n',
        "bare": 'revision = "c"\ndown_revision: str = "a"\nbranch_labels: str\n',
        "merge": 'revision: str = "d"\ndown_revision: tuple[str, ...] = ("b", "c")\n',
        "listed": 'revision = "e"\ndown_revision = ["d"]\n',
        "helper": "HELP = 1\n",
        "__init__": 'revision = "z"\n',
    }
    for name, text in texts.items():
        (here / f"{name}.py").write_text(text)
    assert heads(here) == "e"
    (here / "odd.py").write_text("revision = make()\n")
    with pytest.raises(ConfigError, match=r"odd.py cannot be read as a revision"):
        find_project(here)


INI = """[alembic]
script_location = {location}
sqlalchemy.url = postgresql://x:%%40@host/db
{more}
"""


@pytest.mark.verify
@pytest.mark.parametrize(
    ("location", "more", "wanted"),
    [
        ("%(here)s/db", "", ["db/versions"]),
        ("db", "", ["db/versions"]),
        ("db", "version_locations = %(here)s/one:%(here)s/two\npath_separator = os", ["one", "two"]),
        ("db", "version_locations = %(here)s/one %(here)s/two\nversion_path_separator = space", ["one", "two"]),
        ("db", "version_locations =\n  one\n  two\npath_separator = newline", ["one", "two"]),
        ("db", "version_locations = one, two", ["one", "two"]),
    ],
)
def test_the_folder_is_found_in_alembics_settings(here: Path, location: str, more: str, wanted: list[str]) -> None:
    (here / "db").mkdir()
    (here / "alembic.ini").write_text(INI.format(location=location, more=more))
    assert [each.absolute() for each in find_project(None).folders] == [here / each for each in wanted]


@pytest.mark.verify
def test_alembics_settings_elsewhere(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (here / "sub" / "db").mkdir(parents=True)
    (here / "sub" / "other.ini").write_text(INI.format(location="%(here)s/db", more=""))
    monkeypatch.setenv("ALEMBIC_CONFIG", "sub/other.ini")
    assert find_project(None).folders == [here / "sub/db/versions"]
    (here / "sub" / "pyproject.toml").write_text(
        '[tool.alembic]\nscript_location = "%(here)s/db"\nversion_locations = ["%(here)s/a", "%(here)s/b"]\n'
        "recursive_version_locations = true\n"
    )
    monkeypatch.setenv("ALEMBIC_CONFIG", "sub/pyproject.toml")
    assert find_project(None).folders == [here / "sub/a", here / "sub/b"]
    deep = here / "sub" / "b" / "2026"
    deep.mkdir(parents=True)
    (deep / "one.py").write_text('revision = "a"\ndown_revision = None\n')
    project = find_project(None)
    assert project.folder(project.head(None)) == deep


@pytest.mark.verify
@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({}, "no Alembic project here"),
        ({"alembic.ini": "[loggers]\nkeys = root\n"}, "no Alembic project here"),
        ({"alembic.ini": INI.format(location="nowhere", more="")}, "which is not a folder"),
        ({"alembic.ini": INI.format(location="shop:migrations", more="")}, "name the folder of its revisions"),
        ({"alembic.ini": INI.format(location="%(nothing)s/x", more="")}, "cannot be read"),
        ({"alembic.ini": "script_location = x\n"}, "cannot be read"),
        ({"pyproject.toml": "[tool"}, "cannot be read"),
    ],
)
def test_a_project_of_no_use(here: Path, files: dict[str, str], said: str) -> None:
    for name, text in files.items():
        (here / name).write_text(text)
    with pytest.raises(ConfigError, match=said):
        find_project(None)


@pytest.mark.verify
def test_several_folders_and_no_head_need_a_choice(outrider: Run, tmp_path: Path) -> None:
    (tmp_path / "db").mkdir()
    (tmp_path / "alembic.ini").write_text(
        INI.format(location="db", more=f"version_locations = one{os.pathsep}two\npath_separator = os")
    )
    assert "there are several folders of versions: one, two; name one" in outrider("migrate", "--alembic").stderr
    assert outrider("migrate", "--alembic", "--versions", "two").returncode == 0
    assert len(list((tmp_path / "two").glob("*.py"))) == 1
    assert "nothing to write" in outrider("migrate", "--alembic").stdout
