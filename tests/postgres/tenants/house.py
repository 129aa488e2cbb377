"""Owned by no superuser, with policies on: a worker that sees every tenant, an app that sees its own."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.sql import SQL, Composed, Identifier

from outrider import Outrider
from outrider.postgres.admin import tenants

# The app has more rights than it should: it is the policies that hold it.
MAKE = """
create role {owner} login; create role {worker} login; create role {app} login; create role {stranger} login;
grant {app} to {worker};
"""
GRANT = """
grant usage on schema outrider to {worker}, {app}, {stranger};
grant all on all tables in schema outrider to {worker}, {stranger};
grant all on all sequences in schema outrider to {worker}, {stranger};
grant execute on all functions in schema outrider to {worker}, {stranger}, {app};
alter default privileges for role {owner} in schema outrider grant all on sequences to {worker};
grant select, insert, update, delete on outrider.outbox, outrider.delivery, outrider.job to {app};
grant select on outrider.owed, outrider.unfinished to {app};
grant usage on sequence outrider.job_id_seq to {app};
grant select on outrider.event_status, outrider.tenant_event, outrider.setting, outrider.subscription, outrider.cursor,
    outrider.event_handled, outrider.withdrawal, outrider.audit to {app};
"""
CLEAR = """
drop schema outrider cascade; drop owned by {worker}; drop owned by {app}; drop owned by {stranger}; drop owned by {owner};
drop role {owner}, {worker}, {app}, {stranger}
"""


@dataclass(frozen=True)
class House:
    superuser: str
    name: str

    def role(self, who: str) -> str:
        return f"{who}_{self.name}"

    def dsn(self, who: str) -> str:
        return make_conninfo(self.superuser, user=self.role(who))

    def sql(self, text: str) -> Composed:
        return SQL(text).format(**{who: Identifier(self.role(who)) for who in ("owner", "worker", "app", "stranger")})

    def rows(self, query: str, params: list[Any] | None = None) -> list[tuple[Any, ...]]:
        """As the superuser, whom nothing holds."""
        with psycopg.connect(self.superuser, autocommit=True) as conn:
            cursor = conn.execute(self.sql(query), params)
            return cursor.fetchall() if cursor.description else []

    @contextmanager
    def as_(self, who: str, workspace: str | None = None) -> Iterator[psycopg.Connection[Any]]:
        """`workspace`: the setting of the session; None = never set."""
        with psycopg.connect(self.dsn(who), autocommit=True) as conn:
            if workspace is not None:
                conn.execute("select set_config('app.workspace_id', %s, false)", [workspace])
            yield conn

    def guard(self, *roles: str, enable: bool = True) -> None:
        async def run() -> None:
            async with await psycopg.AsyncConnection.connect(self.dsn("owner"), autocommit=True) as conn:
                commands = await tenants.plan(
                    conn, "outrider", enable=enable, roles=[self.role(each) for each in roles]
                )
                await tenants.carry_out(conn, "outrider", commands)

        asyncio.run(run())


@contextmanager
def built(empty_database: str) -> Iterator[House]:
    name = str(conninfo_to_dict(empty_database)["dbname"])
    house = House(empty_database, name)
    house.rows(MAKE)
    try:
        house.rows(f"grant create on database {name} to {{owner}}; grant create on schema public to {{owner}}")
        asyncio.run(migrated(house.dsn("owner")))
        house.rows(GRANT)
        house.guard("worker")
        yield house
    finally:
        house.rows(CLEAR)


async def migrated(dsn: str) -> None:
    async with Outrider(context="house", dsn=dsn) as app:
        await app.migrate()
