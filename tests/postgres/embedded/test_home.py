"""Where the server lives, and that nothing else is touched."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from outrider.errors import EmbeddedError
from outrider.postgres.embedded import Embedded
from outrider.postgres.embedded.account import Account, server_account
from outrider.postgres.embedded.home import SOCKET, SOCKET_LIMIT, ServerHome, claim, settle, settle_temporary

ROOT = os.geteuid() == 0


@pytest.fixture
def moved(account: Account) -> Iterator[list[ServerHome]]:
    homes: list[ServerHome] = []
    yield homes
    for home in homes:
        shutil.rmtree(home.folder)


def unreachable(place: Path) -> Path:
    """A folder that root's server user cannot enter, or that a normal user cannot write to."""
    folder = place / "closed"
    folder.mkdir(mode=0o700 if ROOT else 0o500)
    return folder


def test_the_home_is_private_and_its_parents_stay_as_they_are(place: Path, account: Account) -> None:
    folder = place / "new" / "it's a (shop) für alle" / "pg"
    watched = [place, *place.parents]
    before = [(found.st_mode, found.st_uid, found.st_gid) for found in map(os.stat, watched)]
    with Embedded(folder) as server, psycopg.connect(server.dsn()) as connection:
        assert server.home == folder
        assert connection.execute("SHOW data_directory").fetchone() == (str(folder / "data"),)
        assert connection.execute("SHOW listen_addresses").fetchone() == ("",)
        found = folder.stat()
        assert (stat.S_IMODE(found.st_mode), found.st_uid) == (0o700, account.uid)
        assert str(folder / "data") in server.describe()
    assert [(found.st_mode, found.st_uid, found.st_gid) for found in map(os.stat, watched)] == before
    assert (folder.parent.stat().st_uid, folder.parent.parent.stat().st_uid) == (os.geteuid(), os.geteuid())


@pytest.mark.verify
def test_an_unreachable_folder_is_replaced_and_said_so(place: Path, account: Account, moved: list[ServerHome]) -> None:
    asked = unreachable(place) / "pg"
    with Embedded(asked) as server:
        home = server.home
        moved.append(ServerHome(home, asked))
        assert home.parent == Path("/var/tmp")
        assert str(home) in server.describe()
        assert str(asked) in server.describe()
        with psycopg.connect(server.dsn()) as connection:
            assert connection.execute("SELECT 1").fetchone() == (1,)
    assert settle(asked, account).folder == home
    if ROOT:
        assert (asked / "location").read_text() == f"{home}\n"


@pytest.mark.parametrize("name", ["x" * SOCKET_LIMIT, "a,b", "a\nb", 'a"b', "a$b"])
def test_a_path_that_cannot_hold_the_socket_is_replaced(
    place: Path, account: Account, moved: list[ServerHome], name: str
) -> None:
    home = settle(place / name / "pg", account)
    moved.append(home)
    assert home.moved
    assert len(os.fsencode(home.folder / SOCKET)) <= SOCKET_LIMIT
    assert (place / name / "pg" / "location").read_text() == f"{home.folder}\n"
    assert stat.S_IMODE(home.folder.stat().st_mode) == 0o700


def test_the_longest_path_that_fits_is_used(place: Path, account: Account) -> None:
    spare = SOCKET_LIMIT - len(os.fsencode(place / SOCKET)) - 1
    assert settle(place / ("x" * spare), account).moved is None


def test_a_folder_of_someone_else_is_refused(place: Path, account: Account) -> None:
    foreign = place / "pg"
    if ROOT:
        foreign.mkdir()
        os.chown(foreign, 12345, 12345)
    else:
        foreign.symlink_to("/usr")
    before = foreign.lstat()
    with pytest.raises(EmbeddedError, match="belongs to"):
        claim(foreign, account)
    assert foreign.lstat() == before


def test_a_folder_with_other_files_is_refused(place: Path) -> None:
    (place / "letter").touch()
    before = place.stat()
    with pytest.raises(EmbeddedError, match="not Outrider's"):
        Embedded(place).start()
    assert (place.stat().st_mode, place.stat().st_uid) == (before.st_mode, before.st_uid)


def test_data_of_another_version_is_refused(place: Path) -> None:
    data = place / "pg" / "data"
    data.mkdir(parents=True)
    (place / "pg" / "start.lock").touch()
    (data / "PG_VERSION").write_text("16\n")
    with pytest.raises(
        EmbeddedError, match=r"Postgres 16 .* Postgres 18 .* version=16 \(OUTRIDER_EMBEDDED_VERSION=16\)"
    ):
        Embedded(place / "pg", version=18).start()
    (data / "PG_VERSION").unlink()
    with pytest.raises(EmbeddedError, match="not a Postgres data folder"):
        Embedded(place / "pg").start()


def test_a_temporary_home_avoids_a_closed_folder(
    place: Path, account: Account, monkeypatch: pytest.MonkeyPatch, moved: list[ServerHome]
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(unreachable(place)))
    home = settle_temporary(account)
    moved.append(home)
    assert home.folder.parent == Path("/var/tmp")
    assert home.folder.stat().st_uid == account.uid


def test_the_user_for_root_can_be_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, complaint in (("no-such-user", "no user"), ("root", "not 'root'")):
        monkeypatch.setenv("OUTRIDER_EMBEDDED_USER", name)
        if ROOT:
            with pytest.raises(EmbeddedError, match=complaint):
                server_account()
        else:
            assert server_account().uid == os.geteuid()


def test_git_ignores_the_folder_of_a_project(place: Path) -> None:
    with Embedded(place / ".outrider" / "pg"):
        assert (place / ".outrider" / ".gitignore").read_text() == "*\n"


def test_a_planted_lock_file_is_not_given_away(place: Path, account: Account) -> None:
    """Root hands its lock files to the server's user; a hard link to something of root's must not go with them."""
    precious, folder = place / "precious", place / "pg"
    precious.write_text("secret")
    folder.mkdir(mode=0o700)
    os.link(precious, folder / "start.lock")
    if account.switched:
        with pytest.raises(EmbeddedError, match=r"start\.lock is not a lock file of Outrider's"):
            Embedded(folder).start()
    assert precious.stat().st_uid == os.geteuid()


INTRUDE = """
import os, sys, psycopg
os.setgroups([])
os.setgid(int(sys.argv[2]))
os.setuid(int(sys.argv[3]))
try:
    psycopg.connect(sys.argv[1]).close()
    print("in")
except psycopg.Error as error:
    print(error)
"""


def intrude(account: Account, dsn: str) -> str:
    """What another process of the server's user gets for an answer."""
    command = [sys.executable, "-c", INTRUDE, dsn, str(account.gid), str(account.uid)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


@pytest.mark.skipif(not ROOT, reason="only root's server runs as another user")
def test_other_processes_of_the_servers_user_stay_outside(place: Path, account: Account) -> None:
    """The owner gets in as any role; a folder in which everybody was trusted is closed at the next start."""
    refused = "Peer authentication failed"
    with Embedded(place / "pg") as server:
        with psycopg.connect(server.dsn(), autocommit=True) as conn:
            conn.execute("create role clerk login")
            before_16 = conn.info.server_version < 160000
        assert refused in intrude(account, server.dsn())
        clerk = make_conninfo(server.dsn(), user="clerk")
        psycopg.connect(clerk).close()
        assert (intrude(account, clerk) == "in\n") == before_16
        rules = server.home / "data" / "pg_hba.conf"
        theirs = "local all visitor scram-sha-256\n"
        rules.write_text(theirs + rules.read_text().replace("peer map=outrider", "trust"))
        server.restart("fast")
        assert refused in intrude(account, server.dsn())
        assert rules.read_text().startswith(theirs)
        psycopg.connect(server.dsn()).close()
