"""`outrider roles`: made once, the same again, mended; by whom it may be run; and the doctor says nothing of them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo
from tests.cli import inprocess

from outrider.errors import ConfigError
from outrider.postgres.admin import roles

pytestmark = pytest.mark.also_on(15, 16)


@pytest.fixture
def owned(empty_database: str) -> Iterator[tuple[psycopg.Connection[Any], str, str]]:
    """A superuser's session; a database of an owner who is none; and a prefix for roles."""
    with psycopg.connect(empty_database, autocommit=True) as root:
        prefix = f"{root.info.dbname}_"
        owner = f"{prefix}owner"
        root.execute(f"create role {owner} login; alter database {root.info.dbname} owner to {owner}".encode())
        yield root, make_conninfo(empty_database, user=owner), prefix
        there = "select rolname from pg_roles where starts_with(rolname, %s) order by rolname = %s"
        root.execute(f"reassign owned by {owner} to current_user".encode())
        for (name,) in root.execute(there, [prefix, owner]).fetchall():
            root.execute(f"drop owned by {name}; drop role {name}".encode())


def test_the_owner_makes_them(owned: tuple[psycopg.Connection[Any], str, str], tmp_path: Path) -> None:
    root, dsn, prefix = owned

    def run(*arguments: str, at: str = dsn) -> Any:
        return inprocess.run(tmp_path, *arguments, "--dsn", at)

    def made() -> dict[str, Any]:
        done = run("roles", "--prefix", prefix, "--json")
        assert done.returncode == 0, done.stderr
        return {each["name"].removeprefix(prefix): each for each in json.loads(done.stdout)["roles"]}

    assert run("migrate").returncode == 0
    refused = run("roles", "--prefix", prefix)
    assert refused.returncode == 1
    assert "who must be able to create roles" in refused.stderr
    root.execute(f"alter role {prefix}owner createrole".encode())
    first = run("roles", "--prefix", prefix)
    assert first.returncode == 0, first.stderr
    assert f"{prefix}producer: created, with " in first.stdout
    assert f"grant pg_monitor to {prefix}dashboard" in first.stderr or root.info.server_version < 160000
    again = made()
    assert list(again) == list(roles.ROLES)
    assert [each for each in again.values() if each["created"] or each["granted"] or each["revoked"]] == []
    root.execute(
        f"grant delete on outrider.outbox to {prefix}worker; revoke select on outrider.outbox from {prefix}relay".encode()
    )
    mended = made()
    assert mended["worker"]["revoked"] == ["delete on outbox"]
    assert mended["relay"]["granted"] == ["select on outbox"]

    printed = inprocess.run(tmp_path, "roles", "--sql", "--prefix", prefix)
    assert printed.stdout == roles.script("outrider", prefix)
    with psycopg.connect(dsn, autocommit=True) as owner:
        owner.execute(printed.stdout.encode())
    assert made()["operator"]["granted"] == []
    findings = json.loads(run("doctor", "--json", at=root.info.dsn).stdout)["findings"]
    assert [each for each in findings if each["check"] == "privileges" and prefix in each["found"]] == [
        each for each in findings if "create roles" in each["found"]
    ]

    root.execute(f"create role {prefix}stranger login; grant usage on schema outrider to {prefix}stranger".encode())
    root.execute(f"grant select on outrider.migration to {prefix}stranger".encode())
    stranger = run("roles", "--prefix", prefix, at=make_conninfo(dsn, user=f"{prefix}stranger"))
    assert stranger.returncode == 1
    assert f"the schema belongs to {prefix}owner, and you are {prefix}stranger" in stranger.stderr
    root.execute(f"alter role {prefix}cron login".encode())
    login = run("roles", "--prefix", prefix)
    assert login.returncode == 1
    assert f"the role {prefix}cron is not a mere group" in login.stderr


@pytest.mark.parametrize("prefix", ["", "Shop_", "a b", "x" * 60, '"; drop', "1_"])
def test_a_prefix_is_a_word(prefix: str) -> None:
    if prefix == "":
        assert roles.named("outrider", prefix)["worker"] == "worker"
        return
    with pytest.raises(ConfigError, match="is not possible"):
        roles.named("outrider", prefix)


def test_no_marker_is_left() -> None:
    text = roles.script("billing")
    assert "/*" not in text
    assert '"billing_producer"' in text
    assert "outrider_" not in text
