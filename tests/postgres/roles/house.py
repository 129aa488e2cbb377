"""Who is there: the owner, a login for each role, and one that has nothing but the right to name what is in the schema."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
from psycopg.conninfo import make_conninfo

from outrider.postgres.admin import roles

NOBODY = "nobody"
_BEFORE = Path(__file__).with_name("before.sql")


def before(part: str) -> str:
    """The grants of the guide from when there was no `outrider roles`: of an application (app), of those who operate."""
    return _BEFORE.read_text().partition(f"-- {part}\n")[2].partition("\n-- ")[0]


@dataclass(frozen=True)
class House:
    owner: psycopg.Connection[Any]
    prefix: str
    """Roles belong to the cluster, which other tests use too."""

    def role(self, name: str) -> str:
        return f"{self.prefix}{name}"

    def login(self, *names: str) -> str:
        """Who is a member of these roles, and of nothing else."""
        return f"{self.prefix}as_{'_'.join(names)}"

    def dsn(self, *names: str) -> str:
        return make_conninfo(self.owner.info.dsn, user=self.login(*names))

    @contextmanager
    def as_(self, *names: str) -> Iterator[psycopg.Connection[Any]]:
        with psycopg.connect(self.dsn(*names), autocommit=True) as conn:
            yield conn

    def audit(self) -> list[tuple[Any, ...]]:
        """What was noted, and who by: by name and by login."""
        return self.owner.execute("select action, by, role, details from outrider.audit order by id").fetchall()


@contextmanager
def opened(*owners: psycopg.Connection[Any], both: tuple[str, ...] = ()) -> Iterator[House]:
    """`both`: also a login that is a member of these. In each of the databases."""
    house = House(owners[0], f"{owners[0].info.dbname}_")
    logins = [(name,) for name in roles.ROLES] + ([both] if both else [])
    names = [
        *(house.login(*each) for each in logins),
        house.login(NOBODY),
        *roles.named("outrider", house.prefix).values(),
    ]
    try:
        for owner in owners:
            owner.execute(roles.script("outrider", house.prefix).encode())
        for each in logins:
            groups = ", ".join(map(house.role, each))
            owners[0].execute(f"create role {house.login(*each)} login in role {groups}".encode())
        owners[0].execute(f"create role {house.login(NOBODY)} login".encode())
        owners[0].execute(f"grant usage on schema outrider to {house.login(NOBODY)}".encode())
        yield house
    finally:
        found = "select rolname from pg_roles where rolname = any (%s)"
        there = [name for (name,) in owners[0].execute(found, [names]).fetchall()]
        for owner in owners:
            for name in there:
                owner.execute(f"drop owned by {name}".encode())
        for name in there:
            owners[0].execute(f"drop role {name}".encode())
