"""A role of one context that may write another's tables is a finding, however it got the right."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import psycopg
import pytest
from tests.clusters import SETTINGS, WHOLE, migrated
from tests.conftest import _database
from tests.doctor.test_doctor import ask, execute

from outrider import Outrider
from outrider.doctor.finding import Severity
from outrider.errors import ConfigError
from outrider.postgres.embedded import Embedded

pytestmark = [pytest.mark.xdist_group("doctor"), pytest.mark.verify, pytest.mark.also_on(15)]

TABLES = ("card", "region", "scan", "survey", "tile")


@pytest.fixture(scope="module")
def server_of_roles() -> Iterator[str]:
    """Roles belong to a whole server, and those of other tests may write everywhere."""
    with Embedded.temporary(settings=SETTINGS) as server:
        asyncio.run(migrated(server, WHOLE))
        yield server.dsn()


@pytest.fixture
def dsn(server_of_roles: str) -> Iterator[str]:
    yield from _database(server_of_roles, WHOLE)


@pytest.fixture
def worlds(dsn: str) -> Iterator[str]:
    """The name of a context whose schema has five tables. Its own roles begin with that name and _, others do not."""
    with psycopg.connect(dsn, autocommit=True) as conn:
        name = f"w_{conn.info.dbname}"
    others = (f"atlas_{name}", f"group_{name}", f"{name}_owner", f"{name}_app", f"{name}er")
    execute(
        dsn,
        *(f"create role {each}" for each in others),
        f"create schema {name} authorization {name}_owner",
        *(
            f"create table {name}.{each} (id int, note text); alter table {name}.{each} owner to {name}_owner"
            for each in TABLES
        ),
        f"grant usage on schema {name} to {name}_app, atlas_{name}",
        f"grant insert, update, delete on all tables in schema {name} to {name}_app",
    )
    yield name
    execute(dsn, *(f"drop owned by {each} cascade" for each in others), *(f"drop role {each}" for each in others))


async def told(dsn: str, worlds: str, **options: list[str]) -> list[str]:
    """What is found about it, with short names."""
    app = Outrider(context=worlds, owns=[worlds], dsn=dsn, **options)  # type: ignore[arg-type]
    found = (await ask(dsn, app))["owns"]
    assert {each.severity for each in found} in ({Severity.warning}, {Severity.ok})
    return [each.found.replace(f"_{worlds}", "").replace(worlds, "W") for each in found]


NOTHING = ["only roles of W can write in W"]


async def test_roles_of_the_context_write_and_others_read(dsn: str, worlds: str) -> None:
    execute(
        dsn,
        f"grant select, references on all tables in schema {worlds} to atlas_{worlds}",
        f"alter default privileges for role {worlds}_owner in schema {worlds} grant select on tables to atlas_{worlds}",
        f"grant select on {worlds}.card to public",
    )
    assert await told(dsn, worlds) == NOTHING


@pytest.mark.parametrize(
    ("granted", "found"),
    [
        ("grant insert on W.card to atlas_W", "atlas may insert on W: card: granted to it"),
        ("grant update, delete on W.card, W.scan to atlas_W", "atlas may delete, update on W: card, scan: granted to it"),
        ("grant insert on all tables in schema W to atlas_W", "atlas may insert on every table of W: granted to it"),
        ("grant update (note) on W.card to atlas_W", "atlas may update on W: card (note): granted to it"),
        ("grant truncate, trigger on W.card to atlas_W", "atlas may trigger, truncate on W: card: granted to it"),
        ("grant delete on W.card to public", "PUBLIC may delete on W: card: granted to it"),
        ("grant create on schema W to atlas_W", "atlas may create on the schema W: granted to it"),
        ("alter default privileges for role W_owner in schema W grant insert on tables to atlas_W",
         "atlas may insert on tables that will come in W: default privileges of W_owner, granted to it"),
        ("alter default privileges for role W_owner grant update on tables to atlas_W",
         "atlas may update on tables that will come in W: default privileges of W_owner, granted to it"),
        ("alter table W.card owner to atlas_W", "atlas may do everything on W: card: it owns it"),
        ("alter schema W owner to atlas_W", "atlas may create, drop on the schema W: it owns the schema"),
        ("create view W.v as select id from W.card; grant insert on W.v to atlas_W",
         "atlas may insert on W: v: granted to it"),
        ("grant W_app to atlas_W",
         "atlas may delete, insert, update on every table of W: granted to W_app, and it is a member of W_app"),
        ("alter role atlas_W noinherit; grant W_app to atlas_W",
         "atlas may delete, insert, update on every table of W: granted to W_app, and it is a member of W_app"),
        ("grant insert on W.scan to group_W; grant group_W to atlas_W",
         "atlas may insert on W: scan: granted to group, and it is a member of group"),
        ("grant W_owner to atlas_W",
         "atlas may do everything on every table of W: W_owner owns it, and it is a member of W_owner"),
        ("grant pg_write_all_data to atlas_W",
         "atlas may delete, insert, update on every table of W: granted to pg_write_all_data"),
        ("grant postgres to atlas_W",
         "atlas may do everything on every table of W: postgres is a superuser, and it is a member of postgres"),
        ("grant insert on W.card to Wer", "Wer may insert on W: card: granted to it"),
    ],
)  # fmt: skip
async def test_every_way_to_the_right_to_write(dsn: str, worlds: str, granted: str, found: str) -> None:
    execute(dsn, granted.replace("W", worlds))
    assert found in "\n".join(await told(dsn, worlds))


async def test_a_membership_that_allows_nothing_is_no_finding(dsn: str, worlds: str) -> None:
    if int(execute(dsn, "show server_version_num")[0][0]) < 160000:
        pytest.skip("such memberships came with Postgres 16")
    execute(dsn, f"grant {worlds}_app to atlas_{worlds} with inherit false, set false")
    assert await told(dsn, worlds) == NOTHING
    execute(dsn, f"grant {worlds}_app to atlas_{worlds} with inherit false, set true")
    assert await told(dsn, worlds) != NOTHING


async def test_roles_can_be_named_and_a_longer_context_has_its_own(dsn: str, worlds: str) -> None:
    execute(dsn, f"grant insert on {worlds}.card to atlas_{worlds}")
    assert await told(dsn, worlds, roles=[f"atlas_{worlds}"]) == NOTHING
    execute(dsn, f"revoke insert on {worlds}.card from atlas_{worlds}")
    assert await told(dsn, worlds, contexts=[worlds, f"{worlds}_app"]) == [
        "W_app may delete, insert, update on every table of W: granted to it"
    ]


async def test_a_schema_that_does_not_exist_is_noted(dsn: str) -> None:
    [found] = (await ask(dsn, Outrider(context="nobody", owns=["Nowhere"], dsn=dsn)))["owns"]
    assert (found.severity, found.found) == (Severity.note, "Nowhere: there is no such schema")


async def test_without_a_declaration_nothing_is_said(dsn: str) -> None:
    assert "owns" not in await ask(dsn, Outrider(context="nobody", dsn=dsn))


@pytest.mark.parametrize("option", ["owns", "roles"])
def test_what_is_declared_must_be_names(option: str) -> None:
    with pytest.raises(ConfigError, match=rf"{option}: 'worlds' is one text, not several: write \['worlds'\]"):
        Outrider(**{option: "worlds"})  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=f"{option}: '' is no name"):
        Outrider(**{option: [""]})  # type: ignore[arg-type]
