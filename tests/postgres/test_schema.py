"""The migrated schema is what the snapshot says; a change to it, or to a function, is a deliberate one.

The snapshot is Postgres 18's. An older server has the same schema but for two things that `older` names.
"""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import psycopg
import pytest

from outrider.postgres import log, statement
from outrider.postgres.embedded import Embedded
from outrider.postgres.schema import migrate

pytestmark = pytest.mark.also_on(15, 16)

SNAPSHOT = Path(__file__).parent / "schema.sql"


@pytest.fixture
def database(whole_database: str) -> str:
    return whole_database


def dumped(dsn: str) -> str:
    command = [str(Embedded().bin / "pg_dump"), "--schema-only", "--no-owner", "--schema=outrider", f"--dbname={dsn}"]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    lines = [line for line in text.splitlines() if not re.match(r"--|\\|SET |SELECT pg_catalog.set_config", line)]
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip() + "\n"


def older(snapshot: str) -> str:
    """The snapshot as a server before 18 has it: the ids' function is ours, and NOT NULL is no constraint with a name."""
    migration = migrate.known()[0].sql
    body = migration[migration.index("-- 48 bits") :].split("$$")[1]
    changed, functions = re.subn(r"\$\$select uuidv7\(\)\$\$", lambda _: f"$${body}$$", snapshot)
    changed, constraints = re.subn(r" CONSTRAINT \w+_not_null NOT NULL", " NOT NULL", changed)
    assert functions == 1
    assert constraints
    return changed


def test_schema_equals_the_snapshot(database: str) -> None:
    found = dumped(database)
    with psycopg.connect(database) as conn:
        newest = conn.info.server_version >= 180000
        if conn.info.server_version < 160000:  # which names the one table of a view with each of its columns
            before, view, after = found.partition("CREATE VIEW outrider.tenant_event")
            own, end, rest = after.partition(";\n\n")
            found = before + view + re.sub(r"\be\.(?=\w)", "", own) + end + rest
    if os.environ.get("OUTRIDER_UPDATE_SNAPSHOT"):
        assert newest, "the snapshot is made on Postgres 18"
        SNAPSHOT.write_text(found)
    snapshot = SNAPSHOT.read_text()
    wanted = snapshot if newest else older(snapshot)
    assert found == wanted, "the schema has changed: if on purpose, run make snapshot and review the diff"


def test_functions_changed_with_a_number() -> None:
    """Functions are only replaced together with a migration, so a changed one needs a new number."""
    newest = migrate.known()[-1]
    assert newest.functions == migrate.functions_fingerprint(), (
        f"a function has changed since migration {newest.version}: add a migration (it may hold nothing but its header) "
        f"with `-- functions: {migrate.functions_fingerprint()}`; if {newest.version} is not released yet, change its header"
    )


def test_the_script_has_the_tables_then_the_functions_by_subject() -> None:
    script = migrate.script("outrider")
    parts = re.findall(r"^-- Functions: (\w+)$|^create (table|or replace function)\b", script, re.MULTILINE)
    kinds = [subject or kind for subject, kind in parts]
    order = list(dict.fromkeys(kinds))
    assert order == ["table", "log", "or replace function", *statement.SUBJECTS[1:]]
    assert set(kinds[kinds.index("log") :]) == {"or replace function", *statement.SUBJECTS}
    folders = {file.parents[1].name: file for file in Path(migrate.__file__).parents[1].glob("sql/*/functions/*.sql")}
    assert set(statement.SUBJECTS) == folders.keys()
    for part in re.split(r"^-- Functions: ", script, flags=re.MULTILINE)[1:]:
        names = re.findall(r'^create or replace function "outrider"\.(\w+)', part, re.MULTILINE)
        assert names == [name for name, _ in statement.functions_of(part.partition("\n")[0])]


def test_migrations_are_numbered_without_gaps() -> None:
    assert [m.version for m in migrate.known()] == list(range(1, len(migrate.known()) + 1))


def test_the_columns_of_a_take_are_those_of_its_type(database: str) -> None:
    query = """select attname from pg_attribute where attrelid = 'outrider.taken'::regclass order by attnum"""
    with psycopg.connect(database) as conn:
        columns = tuple(name for (name,) in conn.execute(query))
    assert columns == log.TAKEN
    wanted = {
        "attempt": log.ATTEMPT, "seq": log.SEQ, "id": log.ID, "event_type": log.TYPE, "event_version": log.VERSION,
        "occurred_at": log.OCCURRED, "workspace_id": log.WORKSPACE, "payload": log.PAYLOAD, "trace_context": log.TRACE,
        "outcome": log.OUTCOME, "partition": log.PARTITION, "due_in": log.DUE_IN, "delivery": log.DELIVERY,
    }  # fmt: skip
    assert wanted == {name: columns.index(name) for name in wanted}
