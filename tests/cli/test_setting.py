"""`outrider setting list` and `outrider roles`, as they are read on a terminal of 80 columns."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import psycopg
import pytest
from tests.cli import inprocess

from outrider.cli.commands.setting import DEFAULTS


def test_names_are_whole_and_defaults_are_those_of_the_schema(
    database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")

    def told(*options: str) -> Any:
        done = inprocess.run(tmp_path, "setting", "list", *options, "--dsn", database)
        assert done.returncode == 0, done
        return done.stdout

    found = json.loads(told("--json"))["settings"]
    assert {each["name"]: each["value"] for each in found} == DEFAULTS
    assert all(each["default"] == each["value"] for each in found)
    with psycopg.connect(database, autocommit=True) as conn:
        insert = "insert into outrider.setting (name, value, least, greatest) values (%s, 60, 0, 86400)"
        conn.execute(insert, ["rollup.warehouse.imports.debounce_seconds"])
    shown = told()
    assert max(map(len, shown.splitlines())) <= 80
    for name in (*DEFAULTS, "rollup.warehouse.imports.debounce_seconds"):
        assert name in shown, shown


def test_roles_are_told_in_few_words(database: str, tmp_path: Path) -> None:
    with psycopg.connect(database, autocommit=True) as conn:
        prefix = f"{conn.info.dbname}_"
        try:
            conn.execute(f"create role {prefix}worker; create role {prefix}old in role {prefix}worker".encode())
            done = inprocess.run(tmp_path, "roles", "--prefix", prefix, "--dsn", database)
            assert done.returncode == 0, done
            assert max(map(len, done.stdout.splitlines())) < 100, done.stdout
            assert f"{prefix}worker existed" in done.stderr
            assert f"its members have the granted rights too: {prefix}old\n" in done.stderr
            conn.execute(f"grant delete on outrider.event_handled to {prefix}worker".encode())
            again = inprocess.run(tmp_path, "roles", "--prefix", prefix, "--dsn", database)
            assert f"{prefix}cron: unchanged" in again.stdout
            assert " rights, 1 revoked" in again.stdout
        finally:
            names = conn.execute("select rolname from pg_roles where starts_with(rolname, %s)", [prefix]).fetchall()
            for (name,) in names:
                conn.execute(f"drop owned by {name}; drop role {name}".encode())
