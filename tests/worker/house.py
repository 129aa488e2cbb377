"""A house with tenants: a table under row-level security, a worker that is no superuser, roles that handlers can take."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.sql import SQL, Composed, Identifier
from tests.worker.shop import Placed

from outrider import Outrider

WHO = "select pg_catalog.current_setting('app.workspace_id', true), current_user::text"
SEES = "select coalesce(string_agg(distinct workspace_id, ','), '') from item"
WRITES = "insert into item (workspace_id, name) values (%s, %s)"
SETUP = """
create role {worker} login;
create role {tenant} nologin;
create role {thief} nologin;
grant {tenant}, {thief} to {worker};
grant usage on schema outrider to {worker};
grant all on all tables in schema outrider to {worker};
grant all on all sequences in schema outrider to {worker};
grant execute on all functions in schema outrider to {worker};
alter default privileges in schema outrider grant all on sequences to {worker};
create table item (id int generated always as identity, workspace_id text not null check (workspace_id <> ''), name text);
alter table item enable row level security;
alter table item force row level security;
create policy own on item using (workspace_id = current_setting('app.workspace_id', true));
grant all on item to {worker}, {tenant}, {thief};
grant create on schema public to {worker}, {thief};
insert into item (workspace_id, name) select 'w' || n, 'here before' from generate_series(1, 3) as n;
"""
CLEAR = "drop owned by {worker}, {tenant}, {thief}; drop role {worker}, {tenant}, {thief}"


@dataclass(frozen=True)
class House:
    owner: str
    """The DSN of a superuser, who sees everything."""
    worker: str
    tenant: str
    """A role without rights in the schema of Outrider: whoever takes or settles with it fails."""
    thief: str

    @property
    def dsn(self) -> str:
        return make_conninfo(self.owner, user=self.worker)

    def sql(self, text: str) -> Composed:
        names = {"worker": self.worker, "tenant": self.tenant, "thief": self.thief}
        return SQL(text).format(**{name: Identifier(role) for name, role in names.items()})

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.owner, autocommit=True) as conn:
            cursor = conn.execute(self.sql(query))
            return cursor.fetchall() if cursor.description else []

    async def publish(self, app: Outrider, *workspaces: str | None, **options: Any) -> None:
        """One event for each, with a key of its own; they are numbered."""
        async with await psycopg.AsyncConnection.connect(self.owner) as conn:
            for n, workspace in enumerate(workspaces):
                event = Placed(customer=f"c{n}", n=n)
                await app.publish(conn, event, **({"workspace_id": workspace} | options))


@contextmanager
def built(database: str) -> Iterator[House]:
    name = conninfo_to_dict(database)["dbname"]
    house = House(database, f"worker_{name}", f"tenant_{name}", f"thief_{name}")
    house.rows(SETUP)
    try:
        yield house
    finally:
        house.rows(CLEAR)


@asynccontextmanager
async def inhabited(house: House, declare: Callable[[Outrider], object], **options: Any) -> AsyncIterator[Outrider]:
    """The worker's app, open; its handlers were registered by the owner."""
    owner, app = Outrider(context="house", dsn=house.owner), Outrider(context="house", **({"dsn": house.dsn} | options))
    declare(owner)
    declare(app)
    async with owner:
        await owner.migrate()
    async with app:
        yield app
