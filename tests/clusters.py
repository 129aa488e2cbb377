"""Whole servers as test subjects: migrate one, dump it, restore into another, burn transaction ids."""

from __future__ import annotations

import asyncio
import subprocess
import time
from pathlib import Path

import psycopg

from outrider.postgres import connection
from outrider.postgres.embedded import Embedded
from outrider.postgres.embedded.account import Account
from outrider.postgres.schema import migrate

WHOLE = "outrider_whole"
"""The name of a database as `outrider migrate` leaves it."""
TEMPLATE = "outrider_template"
"""The same with two segments."""
SETTINGS = {
    "max_connections": "300",
    "max_prepared_transactions": "50",
    "shared_buffers": "256MB",
    "autovacuum_naptime": "1h",  # else it takes locks and transaction ids whenever it likes
}


TWO_SEGMENTS = """
alter table outrider.outbox detach partition outrider.outbox_tail;
do $$ begin execute (select string_agg(format('drop table outrider.%I', s.name), '; ') from outrider.segment as s
                     where s.first_seq > 0 and s.name <> 'outbox_tail'); end $$;
select outrider.attach_part('outbox_tail', 1000000, null), outrider.note_segments();
"""
"""Leaves the first and the last segment of the log. The fifteen between them cost the server a third more CPU in each test:
it copies their files, and every new session reads their part of the catalogue."""


async def migrated(server: Embedded, database: str) -> None:
    """Make a database with the migrated schema."""
    await asyncio.to_thread(server.ensure_database, database)
    async with await connection.connect(server.dsn(database), autocommit=True) as conn:
        await migrate.migrate(conn, "outrider", "tests")


async def make_templates(server: Embedded) -> None:
    await migrated(server, WHOLE)
    with psycopg.connect(server.dsn(), autocommit=True) as conn:
        conn.execute(f"create database {TEMPLATE} template {WHOLE}".encode())
    with psycopg.connect(server.dsn(TEMPLATE), autocommit=True) as conn:
        conn.execute(TWO_SEGMENTS)


def let_in(dsn: str, account: Account) -> None:
    """Processes of the user as whom the server runs: it keeps them out where that is not the user who started it."""
    if not account.switched:
        return
    loaded = "select pg_conf_load_time()::text"
    with psycopg.connect(dsn, autocommit=True) as conn:
        file, before = conn.execute("show ident_file").fetchone(), conn.execute(loaded).fetchone()
        assert file is not None
        with Path(file[0]).open("a") as names:
            names.write(f'outrider "{account.name}" {"all" if conn.info.server_version >= 160000 else "postgres"}\n')
        conn.execute("select pg_reload_conf()")
        while conn.execute(loaded).fetchone() == before:
            time.sleep(0.01)


def dump(server: Embedded, database: str, file: Path) -> None:
    dump_from(server, server.dsn(database), file)


def dump_from(server: Embedded, dsn: str, file: Path) -> None:
    """With the programs of this server, from whatever server the DSN names."""
    command = [str(server.bin / "pg_dump"), "--format=custom", f"--file={file}", f"--dbname={dsn}"]
    subprocess.run(command, check=True, capture_output=True, text=True)


def restore(server: Embedded, database: str, file: Path) -> None:
    server.ensure_database(database)
    command = [str(server.bin / "pg_restore"), "--exit-on-error", f"--dbname={server.dsn(database)}", str(file)]
    subprocess.run(command, check=True, capture_output=True, text=True)


def next_xid(server: Embedded) -> int:
    with psycopg.connect(server.dsn(), autocommit=True) as conn:
        row = conn.execute("select pg_current_xact_id()::text::bigint").fetchone()
        assert row is not None
        return int(row[0])


def burn_xids(server: Embedded, upto: int) -> None:
    count = upto - next_xid(server)
    with psycopg.connect(server.dsn(), autocommit=True) as conn:
        conn.execute(
            f"do $$ begin for n in 1..{max(count, 0)} loop perform pg_current_xact_id(); commit; end loop; end $$".encode()
        )
