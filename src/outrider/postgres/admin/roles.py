"""Creates group roles with the least privileges that each needs. All grants are in sql/admin/roles.sql."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import psycopg
from psycopg import AsyncConnection

from outrider import names
from outrider.errors import ConfigError, RolesRefused
from outrider.postgres.schema.migrate import hold
from outrider.postgres.statement import fetch, statement

ROLES = ("producer", "worker", "relay", "operator", "dashboard", "cron", "upkeep")
PATIENCE = "10s"
"""How long to wait for a running migration of the same schema."""
_ROLE = re.compile(r"/\*prefix\*/(\w+)")


@dataclass(frozen=True, slots=True)
class Made:
    """What was changed for one role."""

    name: str
    created: bool
    rights: int
    granted: list[str]
    revoked: list[str]


@dataclass(frozen=True, slots=True)
class Outcome:
    roles: list[Made]
    notices: list[str] = field(default_factory=list)


def named(schema: str, prefix: str | None = None) -> dict[str, str]:
    """The role names by purpose."""
    prefix = f"{schema}_" if prefix is None else prefix
    found = {role: f"{prefix}{role}" for role in ROLES}
    for name in found.values():
        if wrong := names.wrong_word(name):
            raise ConfigError(f"the prefix {prefix!r} is not possible: {name!r} {wrong}")
    return found


def grants(schema: str, prefix: str | None = None) -> str:
    """The SQL that creates the roles, to be run in one transaction."""
    roles = named(schema, prefix)
    text = statement("admin/roles", schema).decode().replace("'{/*all roles*/}'", f"'{{{','.join(roles.values())}}}'")
    text = text.replace("/*all roles*/", ", ".join(f'"{name}"' for name in roles.values()))
    text = text.replace("'/*namespace*/'", f"'{schema}'").replace("/*namespace*/", f'"{schema}"')
    text = text.replace("'/*dashboard*/'", f"'{roles['dashboard']}'").replace(
        "'/*operator*/'", f"'{roles['operator']}'"
    )
    text = text.replace("/*hold*/", hold(schema, PATIENCE))
    return _ROLE.sub(lambda found: f'"{roles[found[1]]}"', text)


def script(schema: str, prefix: str | None = None) -> str:
    """The same, for psql."""
    return f"begin;\n{grants(schema, prefix)}commit;\n"


async def make(conn: AsyncConnection[Any], schema: str, prefix: str | None = None) -> Outcome:
    """Creates the roles in one transaction; returns what was new. `conn` is in autocommit mode."""
    roles = list(named(schema, prefix).values())
    notices: list[str] = []

    def hear(notice: psycopg.errors.Diagnostic) -> None:
        if notice.severity_nonlocalized == "NOTICE" and notice.message_primary:
            notices.append(notice.message_primary)

    conn.add_notice_handler(hear)
    try:
        async with conn.transaction():
            before = await _held(conn, schema, roles)
            await conn.execute(grants(schema, prefix).encode())
            after = await _held(conn, schema, roles)
    except psycopg.errors.LockNotAvailable as error:
        raise RolesRefused(
            f"nothing was changed: {error.diag.message_primary}. {error.diag.message_hint or 'Run it again.'}"
        ) from error
    except psycopg.errors.InsufficientPrivilege as error:
        raise RolesRefused(
            f"nothing was changed: {error.diag.message_primary}: run it as the owner of the schema, who must be able to "
            f"create roles; or let an administrator create these with NOLOGIN first, then run it as the owner: "
            f"{', '.join(roles)}"
        ) from error
    except psycopg.Error as error:
        if error.sqlstate != "OR010":
            raise
        raise RolesRefused(f"nothing was changed: {error.diag.message_primary}: choose another --prefix") from error
    finally:
        conn.remove_notice_handler(hear)
    return Outcome([_made(name, before, after) for name in roles], notices)


async def _held(conn: AsyncConnection[Any], schema: str, roles: Sequence[str]) -> dict[str, list[str]]:
    return dict(await fetch(conn, "admin/roles_held", schema, {"schema": schema, "roles": list(roles)}))


def _made(name: str, before: dict[str, list[str]], after: dict[str, list[str]]) -> Made:
    had, has = before.get(name, []), after[name]
    return Made(
        name,
        name not in before,
        len(has),
        [right for right in has if right not in had],
        [right for right in had if right not in has],
    )
