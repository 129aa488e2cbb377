"""Whoever does not see every tenant is told so, and never that all is well."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from psycopg.errors import InsufficientPrivilege
from tests.cli import inprocess
from tests.postgres.tenants.house import House, built

from outrider.error_text import describe
from outrider.postgres.errors import forbidden

HIDDEN = "row-level security hides rows"


@pytest.fixture
def house(empty_database: str) -> Iterator[House]:
    with built(empty_database) as house:
        yield house


def test_whoever_sees_only_a_part_is_told(house: House, tmp_path: Path) -> None:
    def run(who: str, *command: str) -> Any:
        return inprocess.run(tmp_path, *command, "--dsn", house.dsn(who))

    unknown = str(uuid4())
    for command in (
        ["status"], ["job", "list"], ["dlq", "list"], ["dlq", "show", unknown], ["event", "show", unknown],
        ["job", "show", unknown],
    ):  # fmt: skip
        refused = run("stranger", *command)
        assert (refused.returncode, refused.stdout) == (1, ""), command
        assert f"{HIDDEN} " in refused.stderr
        assert f"--role {house.role('stranger')}" in refused.stderr
        seen = run("worker", *command)
        assert HIDDEN not in seen.stderr, command
        assert bool(seen.returncode) == ("show" in command), seen
    for who, severities in (("stranger", ["warning"]), ("worker", [])):
        found = json.loads(run(who, "doctor", "--json").stdout)["findings"]
        hidden = [each for each in found if HIDDEN in each["found"] and each["check"] == "privileges"]
        assert [each["severity"] for each in hidden] == severities


def test_a_worker_says_what_to_do(house: House) -> None:
    """The words that its log has for a batch that was rolled back."""
    with house.as_("stranger") as conn, pytest.raises(InsufficientPrivilege) as refused:
        conn.execute("select * from outrider.take('house.reader')")
    said = describe(refused.value)
    assert HIDDEN in said
    assert said.endswith(f"outrider tenants enable --role {house.role('stranger')}")


@pytest.mark.parametrize(
    ("function", "advice"),
    [
        ("register", "outrider migrate --app"),
        ("register_job", "outrider migrate --app"),
        ("tenants_plan", "the owner of the schema"),
        ("attach_segment", 'a member of "shop_operator"'),
        ("erase", 'a member of "shop_operator"'),
        ("take", "docs/roles.md lists"),
    ],
)
def test_who_may_do_what_was_refused(function: str, advice: str) -> None:
    said = str(forbidden("shop", f"permission denied for function {function}"))
    assert advice in said
    assert f"function {function})" in said


def test_who_sees_every_tenant_keeps_it(house: House, tmp_path: Path) -> None:
    def enable(*options: str) -> Any:
        done = inprocess.run(tmp_path, "tenants", "enable", *options, "--json", "--dsn", house.dsn("owner"))
        assert done.returncode == 0, done
        told = json.loads(done.stdout)
        return told["gained"], told["lost"], [name for name in told["held"] if name.endswith(house.name)]

    app, stranger, worker = (house.role(who) for who in ("app", "stranger", "worker"))
    assert enable("--role", stranger) == ([stranger], [], [app])
    assert enable() == ([], [], [app])
    assert enable("--role", stranger, "--only") == ([], [worker], [app, worker])
    told = inprocess.run(tmp_path, "tenants", "enable", "--only", "--dsn", house.dsn("owner"))
    assert f"no longer see every tenant: {stranger}\n" in told.stdout
    assert "may read, but see only the tenant of app.workspace_id: " in told.stdout
