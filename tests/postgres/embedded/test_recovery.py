"""Whatever gets killed, the next start finds every committed row."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Literal

import psutil
import psycopg
import pytest
from tests.postgres.embedded.conftest import Arrive, await_ended, ended, processes_of, supervisor

from outrider.postgres.embedded import Embedded
from outrider.postgres.embedded.account import Account


@pytest.fixture
def server(project: Path) -> Iterator[Embedded]:
    with Embedded(project) as server:
        with psycopg.connect(server.dsn()) as connection:
            connection.execute("DROP TABLE IF EXISTS kept")
            connection.execute("CREATE TABLE kept AS SELECT 7 AS value")
        yield server


def kept(server: Embedded) -> bool:
    with psycopg.connect(server.dsn()) as connection:
        return connection.execute("SELECT value FROM kept").fetchall() == [(7,)]


def kill(*processes: psutil.Process) -> None:
    for process in processes:
        process.kill()
    for process in processes:
        await_ended(process)


@pytest.mark.verify
def test_a_server_without_supervisor_is_adopted(server: Embedded, project: Path, arrive: Arrive) -> None:
    postmaster = psutil.Process(server.pid)
    with psycopg.connect(server.dsn()) as connection:
        kill(supervisor(server.home))
        user = arrive(project)
        assert user.postmaster == postmaster
        assert connection.execute("SELECT value FROM kept").fetchall() == [(7,)]
    server.stop()
    assert not ended(postmaster)
    user.leave()
    assert ended(postmaster)


@pytest.mark.verify
def test_the_last_to_leave_stops_a_server_without_supervisor(server: Embedded) -> None:
    postmaster = psutil.Process(server.pid)
    kill(supervisor(server.home))
    server.stop()
    assert ended(postmaster)


def test_a_killed_postmaster_is_started_again(server: Embedded) -> None:
    with psycopg.connect(server.dsn()):
        kill(psutil.Process(server.pid))
        server.start()
        assert kept(server)


@pytest.mark.verify
def test_everything_killed_at_once(project: Path, arrive: Arrive, server: Embedded) -> None:
    server.stop()
    user = arrive(project)
    kill(user.supervisor, user.postmaster)
    user.kill()
    server.start()
    assert kept(server)


@pytest.mark.verify
def test_user_and_supervisor_killed_leaves_a_server_to_adopt(project: Path, arrive: Arrive, server: Embedded) -> None:
    server.stop()
    user = arrive(project)
    kill(user.supervisor)
    user.kill()
    assert not ended(user.postmaster)
    server.start()
    assert server.pid == user.postmaster.pid
    assert kept(server)


@pytest.mark.verify
def test_a_reused_pid_is_neither_trusted_nor_signalled(server: Embedded, account: Account) -> None:
    home, pid = server.home, server.pid
    content = (home / "data" / "postmaster.pid").read_text()
    server.stop()
    uid = account.uid if account.switched else None
    with subprocess.Popen(["/bin/sh", "-c", "read line"], stdin=subprocess.PIPE, cwd="/", user=uid) as stranger:
        for name in ("data/postmaster.pid", ".s.PGSQL.5432.lock"):
            stale = home / name
            stale.write_text(content.replace(str(pid), str(stranger.pid), 1))
            account.own(stale)
        server.start()
        assert kept(server)
        server.stop()
        assert stranger.poll() is None


@pytest.mark.verify
@pytest.mark.parametrize("mode", ["fast", "immediate"])
def test_a_restart_keeps_rows_and_registrations(
    server: Embedded, project: Path, arrive: Arrive, mode: Literal["fast", "immediate"]
) -> None:
    user = arrive(project)
    server.restart(mode)
    assert ended(user.postmaster)
    assert kept(server)
    postmaster = psutil.Process(server.pid)
    server.stop()
    assert not ended(postmaster)
    user.leave()
    assert ended(postmaster)


@pytest.mark.verify
def test_a_killed_initdb_leaves_nothing_in_the_way(
    place: Path, begin: Callable[..., subprocess.Popen[str]], account: Account
) -> None:
    folder = place / "pg"
    process = begin(folder)
    deadline = time.monotonic() + 60
    while not (folder / "data.new" / "PG_VERSION").exists():
        assert time.monotonic() < deadline
        time.sleep(0.001)
    process.kill()
    process.wait()
    orphans = []
    for orphan in processes_of(folder):
        with suppress(psutil.NoSuchProcess):  # what initdb runs comes and goes
            if "initdb" in orphan.name():
                orphans.append(orphan)
    with Embedded(folder) as server, psycopg.connect(server.dsn()) as connection:
        assert all(ended(orphan) for orphan in orphans)
        assert connection.execute("SELECT 1").fetchone() == (1,)
        assert not (folder / "data.new").exists()


@pytest.mark.verify
def test_temporary_servers_are_removed_whatever_died(
    place: Path, arrive: Arrive, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.chmod(0o1777)
    monkeypatch.setattr("tempfile.tempdir", str(place))
    abandoned = arrive()
    kill(abandoned.supervisor)
    abandoned.kill()
    assert abandoned.home.exists()
    server = Embedded.temporary()
    server.start()
    assert ended(abandoned.postmaster)
    assert not abandoned.home.exists()
    home, watchdog = server.home, supervisor(server.home)
    kill(psutil.Process(server.pid))
    await_ended(watchdog)
    server.start()
    server.restart()
    kill(psutil.Process(server.pid), supervisor(home))
    server.stop()
    assert not home.exists()


@pytest.mark.verify
def test_a_removed_folder_is_made_anew(place: Path) -> None:
    server = Embedded(place / "pg")
    server.start()
    lost = psutil.Process(server.pid)
    shutil.rmtree(place / "pg")
    kill(lost)
    server.start()
    with psycopg.connect(server.dsn()) as connection:
        assert connection.execute("SELECT 1").fetchone() == (1,)
    server.stop()
