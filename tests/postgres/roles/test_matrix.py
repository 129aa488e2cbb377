"""Who may do what: every table, column, sequence, function and statement, and what nobody should, tried as every role.

matrix.txt is what came of it, to be read in review. OUTRIDER_UPDATE_SNAPSHOT=1 writes it anew. What is new in the schema is
found in the catalogue: nobody can forget it here.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from tests.postgres.roles.house import NOBODY, House

from outrider.postgres import event_inserts, job_inserts, statement
from outrider.postgres.admin import roles

pytestmark = pytest.mark.also_on(15, 16)

MATRIX = Path(__file__).with_name("matrix.txt")
COLUMNS = (NOBODY, *roles.ROLES)
DENIED = "42501"
SQL = Path(statement.__file__).parent / "sql"
NOT_TRIED = {
    "admin/roles": "is run by the owner, and is what is tested here",
    "schema/hold_migrations": "is a part of scripts",
    "schema/inherit_grants": "is a part of a migration",
    "schema/migration_ledger": "is a part of a migration",
    "schema/refuse_unaware": "is a part of a script",
    "handlers/settle": "commits: its function is tried",
    "uninstall/script": "is made of other files, which are tried",
}
PUBLISHED = (*event_inserts.COLUMNS, "caused_by")
ENQUEUED = tuple(job_inserts.COLUMNS)
FILLED = {
    "log/publish_one": event_inserts.publish_one("outrider", PUBLISHED, notify=True),
    "log/publish_many": event_inserts.publish_many("outrider", (), PUBLISHED),
    "jobs/enqueue_job": job_inserts.filled("enqueue_job", "outrider", ENQUEUED, ()),
    "jobs/enqueue_jobs": job_inserts.filled("enqueue_jobs", "outrider", ENQUEUED, ("payload",)),
}
"""Statements with gaps, as they are sent with all columns."""
GIVEN = {"schema": "'outrider'", "force": "false", "whole": "false", "limit": "1", "most": "1"}
"""Parameters whose value is not null when a statement or a function is tried."""
COUNTERS = {"sequence excused_N select", "sequence takes_N select"}
"""How often each cursor was taken: whoever takes reads it, and nobody else learns anything from it."""

# Runs each text with the caller's rights and undoes it; back comes what the server said.
TRY = """
create schema attempts;
create function attempts.noop() returns trigger language plpgsql as 'begin return null; end';
create function attempts.tried(texts text[]) returns text[] language plpgsql
    set search_path = pg_catalog, pg_temp set lock_timeout = '2s' as $$
declare
    each text;
    said text[] := '{}';
    state text;
    message text;
begin
    foreach each in array texts loop
        begin
            execute each;
            raise sqlstate 'ZZ000';
        exception when others then
            get stacked diagnostics state = returned_sqlstate, message = message_text;
            said := said || (state || ' ' || message);
        end;
    end loop;
    return said;
end $$;
grant usage, create on schema attempts to public;
"""
DDL = {
    "create a table": "create table outrider.mine (n int)",
    "create a function": "create function outrider.mine() returns int language sql as 'select 1'",
    "create a view": "create view outrider.mine as select 1 as one",
    "create a type": "create type outrider.mine as (n int)",
    "create a schema": "create schema mine",
    "create a role": "create role mine_{db}",
    "alter a table": "alter table outrider.outbox add column mine int",
    "disable a trigger": "alter table outrider.cursor disable trigger all",
    "replace a function": "create or replace function outrider.uuid7() returns uuid language sql as 'select null::uuid'",
    "drop a table": "drop table outrider.audit",
    "drop a segment": "drop table outrider.outbox_s0",
    "detach a segment": "alter table outrider.outbox detach partition outrider.outbox_s0",
    "drop a function": "drop function outrider.settle(bigint)",
    "change an owner": "alter table outrider.audit owner to current_user",
    "lock a table": "lock table outrider.outbox in access exclusive mode",
    "become the owner": "set role {owner}",
    "become another session": "set session authorization {owner}",
    "run a program": "copy outrider.migration to program 'true'",
    "read a file": "select pg_read_file('/etc/hostname')",
    "write a file": "copy outrider.migration to '/nowhere/at/all'",
    "leave out triggers": "set session_replication_role = replica",
    "leave out row security": "alter role current_user bypassrls",
    "end a session": "select pg_terminate_backend(pid) from pg_stat_activity where usename = '{owner}'",
}  # fmt: skip


def test_a_migration_gives_none_of_them_more(house: House) -> None:
    """What it gives to roles that were made by hand, these have, or do not need."""
    held = """select c.oid::regclass::text, a.grantee::regrole::text, a.privilege_type from pg_class as c
              cross join aclexplode(c.relacl) as a where c.relnamespace = 'outrider'::regnamespace
              union all
              select p.oid::regprocedure::text, a.grantee::regrole::text, a.privilege_type from pg_proc as p
              cross join aclexplode(p.proacl) as a where p.pronamespace = 'outrider'::regnamespace
              union all
              select t.attrelid::regclass || '.' || t.attname, a.grantee::regrole::text, a.privilege_type
              from pg_attribute as t
              join pg_class as c on c.oid = t.attrelid cross join aclexplode(t.attacl) as a
              where c.relnamespace = 'outrider'::regnamespace"""
    before = set(house.owner.execute(held).fetchall())
    house.owner.execute(statement.statement("schema/inherit_grants", "outrider"))
    assert set(house.owner.execute(held).fetchall()) - before == set()


@pytest.mark.verify
def test_everything_as_every_role(house: House) -> None:
    house.owner.execute(TRY.encode())
    house.owner.execute("select outrider.register('shop.count', 'handler', 'shop', '{orders.placed}')")
    attempts = dict(_attempts(house))
    cells: dict[str, list[str]] = {name: [] for name in attempts}
    untried: list[str] = []
    for column in COLUMNS:
        with house.as_(column) as conn:
            [said] = conn.execute("select attempts.tried(%s)", [list(attempts.values())]).fetchall()[0]
        for (name, text), each in zip(attempts.items(), said, strict=True):
            state, _, message = each.partition(" ")
            wrong = state[:2] in ("42", "0A") and state not in (DENIED, "42809", "0A000", "42804", "42830")
            untried += [f"{name}: {each}: {text}"] * wrong
            cells[name].append("-" if _denied(name, state, message) else "yes")
    assert untried == [], "\n".join(untried)
    found = _matrix(cells)
    if os.environ.get("OUTRIDER_UPDATE_SNAPSHOT"):
        MATRIX.write_text(found)
    assert found == MATRIX.read_text(), "who may do what has changed: OUTRIDER_UPDATE_SNAPSHOT=1 writes it anew"
    for name, row in cells.items():
        if name.startswith(("DDL", "segment")):
            assert set(row) == {"-"}, f"{name}: {row}"
        if not name.startswith("statement") and name not in COUNTERS:  # some statements read nothing but the catalogue
            assert row[0] == "-", f"{name} is everybody's"


def _denied(name: str, state: str, message: str) -> bool:
    """Of a function: itself, not something that it needs and its caller lacks, or refuses."""
    if name.startswith("function "):
        return state == DENIED and message == f"permission denied for function {name.split()[1].split('(')[0]}"
    return state == DENIED


def _attempts(house: House) -> Iterator[tuple[str, str]]:
    yield from _tables(house.owner)
    for (sequence,) in house.owner.execute(
        "select relname from pg_class where relnamespace = 'outrider'::regnamespace and relkind = 'S' order by 1"
    ):
        name = f"sequence {re.sub(r'[0-9]+$', 'N', sequence)}"
        yield f"{name} usage", f"select nextval('outrider.{sequence}')"
        yield f"{name} select", f"select last_value from outrider.{sequence}"
        yield f"{name} update", f"select setval('outrider.{sequence}', 1000)"
    for name, types, parameters in house.owner.execute(
        """select p.proname, array(select t::regtype::text from unnest(p.proargtypes) as t),
                  coalesce(p.proargnames, '{}')
           from pg_proc as p where p.pronamespace = 'outrider'::regnamespace
           order by 1, pg_get_function_identity_arguments(p.oid)"""
    ):
        yield f"function {name}", f"select outrider.{name}({', '.join(f'null::{each}' for each in types)})"
        values = (GIVEN.get(each.removeprefix("p_"), "null") for each in [*parameters, *types])
        given = ", ".join(f"{value}::{each}" for each, value in zip(types, values, strict=False))
        yield f"call {name}", f"select outrider.{name}({given})"
    for file in sorted(SQL.rglob("*.sql")):
        name = str(file.relative_to(SQL).with_suffix(""))
        if "/functions/" not in name and name not in NOT_TRIED:
            yield f"statement {name}", _with_nulls(FILLED.get(name) or statement.statement(name, "outrider"))
    owner = house.owner.info.user
    for name, text in DDL.items():
        yield f"DDL {name}", text.format(owner=owner, db=house.owner.info.dbname)


def _with_nulls(query: bytes) -> str:
    text = query.decode()
    for parameter, given in GIVEN.items():
        text = text.replace(f"%({parameter})s", given)
    return re.sub(r"%\(\w+\)[sbt]", "null", text).replace("%%", "%")


def _tables(owner: psycopg.Connection[Any]) -> Iterator[tuple[str, str]]:
    query = """select c.relname, c.relkind, c.relispartition,
                      array(select quote_ident(a.attname) from pg_attribute as a
                            where a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped and a.attgenerated = ''
                            order by a.attnum)
               from pg_class as c
               where c.relnamespace = 'outrider'::regnamespace and c.relkind in ('r', 'p', 'v')
                 and (not c.relispartition or c.relname in ('outbox_s0', 'outbox_tail'))
               order by c.relispartition, 1"""
    for table, kind, segment, columns in owner.execute(query):
        name, place = f"{'segment' if segment else 'table'} {table}", f"outrider.{table}"
        yield f"{name} select", f"select * from {place} limit 0"
        if kind == "v":  # of many tables: nobody can write to it
            continue
        every = ", ".join(columns)
        into = "overriding system value select"
        yield f"{name} insert", f"insert into {place} ({every}) {into} {', '.join(['null'] * len(columns))} where false"
        yield f"{name} update", f"update {place} set {', '.join(f'{each} = default' for each in columns)} where false"
        yield f"{name} delete", f"delete from {place} where false"
        yield f"{name} truncate", f"truncate {place}"
        yield f"{name} lock", f"lock table {place} in exclusive mode"
        yield f"{name} references", f"create table attempts.referring (n int references {place})"
        trigger = "after insert on {} for each statement execute function attempts.noop()"
        yield f"{name} trigger", f"create trigger mine {trigger.format(place)}"
        for column in columns:
            yield f"column {table}.{column} select", f"select {column} from {place} limit 0"
            yield f"column {table}.{column} insert", f"insert into {place} ({column}) {into} null where false"
            yield f"column {table}.{column} update", f"update {place} set {column} = default where false"


def _matrix(cells: dict[str, list[str]]) -> str:
    """A line for a column only where it differs from its table, and for a call only where it differs from its function.

    A function may be allowed, and its call be denied: it needs something else that the role lacks.
    """
    width = max(map(len, cells)) + 2
    lines = [" ".join([" " * width, *COLUMNS])]
    for name, row in cells.items():
        if name.startswith("column "):
            table, privilege = name.removeprefix("column ").split(".")[0], name.rpartition(" ")[2]
            if row == cells.get(f"table {table} {privilege}", cells.get(f"segment {table} {privilege}")):
                continue
        if name.startswith("call ") and row == cells[f"function {name.removeprefix('call ')}"]:
            continue
        lines.append(
            " ".join(
                [f"{name:<{width}}", *(f"{cell:<{len(column)}}" for cell, column in zip(row, COLUMNS, strict=True))]
            ).rstrip()
        )
    return "\n".join(lines) + "\n"
