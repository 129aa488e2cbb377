"""One server for all who name the folder, down when the last of them is gone."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import psycopg
import pytest
from tests.postgres.embedded.conftest import Arrive, await_ended, ended, supervisor

from outrider.errors import EmbeddedError
from outrider.postgres.embedded import Embedded


def query(server: Embedded, statement: str, database: str = "postgres") -> list[tuple[object, ...]]:
    with psycopg.connect(server.dsn(database), autocommit=True) as connection:
        return connection.execute(statement.encode()).fetchall()


@pytest.mark.verify
def test_data_outlives_the_server(project: Path) -> None:
    with Embedded(project) as server:
        first = psutil.Process(server.pid)
        server.ensure_database("shop")
        with psycopg.connect(server.dsn("shop")) as connection:
            connection.execute("CREATE TABLE kept AS SELECT 7 AS value")
    assert ended(first)
    with Embedded(project) as server:
        assert query(server, "SELECT value FROM kept", "shop") == [(7,)]
        assert query(server, "SHOW fsync") == [("on",)]
        assert query(server, "SHOW server_encoding") == [("UTF8",)]


@pytest.mark.verify
def test_objects_of_one_process_count_separately(project: Path) -> None:
    one, two = Embedded(project), Embedded(project)
    one.start()
    one.start()
    two.start()
    postmaster = psutil.Process(one.pid)
    assert two.pid == postmaster.pid
    one.stop()
    one.stop()
    assert query(two, "SELECT 1") == [(1,)]
    two.stop()
    assert ended(postmaster)
    with pytest.raises(EmbeddedError, match="start"):
        one.dsn()


@pytest.mark.verify
def test_the_server_stops_only_after_the_second_process(project: Path, arrive: Arrive) -> None:
    one, two = arrive(project), arrive(project)
    watchdog = one.supervisor
    assert one.postmaster == two.postmaster
    one.leave()
    assert not ended(two.postmaster)
    two.leave()
    assert ended(two.postmaster)
    assert ended(watchdog)


@pytest.mark.verify
def test_the_first_starters_settings_win(project: Path) -> None:
    with (
        Embedded(project, settings={"work_mem": "5MB"}) as first,
        Embedded(project, settings={"work_mem": "6MB"}) as second,
    ):
        assert query(first, "SHOW work_mem") == query(second, "SHOW work_mem") == [("5MB",)]


@pytest.mark.verify
def test_the_last_user_may_be_killed(project: Path, arrive: Arrive) -> None:
    user = arrive(project)
    watchdog = user.supervisor
    user.kill()
    await_ended(watchdog)
    assert ended(user.postmaster)


@pytest.mark.verify
def test_a_user_who_forgets_to_stop_leaves_all_the_same(project: Path, arrive: Arrive) -> None:
    user = arrive(project, "forget")
    watchdog = user.supervisor
    user.leave()
    await_ended(watchdog)
    assert ended(user.postmaster)


@pytest.mark.verify
def test_an_arrival_during_the_stop_gets_a_new_server(project: Path, arrive: Arrive) -> None:
    leaving = arrive(project)
    leaving.process.send_signal(signal.SIGKILL)
    with Embedded(project) as server:
        assert query(server, "SELECT 1") == [(1,)]


@pytest.mark.verify
def test_a_forked_child_keeps_the_server(project: Path) -> None:
    server = Embedded(project)
    server.start()
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(writer)
        os.read(reader, 1)
        os._exit(0)
    os.close(reader)
    postmaster, watchdog = psutil.Process(server.pid), supervisor(server.home)
    server.stop()
    assert not ended(postmaster)
    os.close(writer)
    os.waitpid(child, 0)
    await_ended(watchdog)
    assert ended(postmaster)


@pytest.mark.verify
def test_processes_that_arrive_at_once_agree(
    place: Path, begin: Callable[..., subprocess.Popen[str]], arrive: Arrive
) -> None:
    crowd = [begin(place / "pg") for _ in range(4)]
    users = [arrive(process=process) for process in crowd]
    assert len({user.postmaster.pid for user in users}) == 1
    for user in users:
        user.leave()
    assert ended(users[0].postmaster)


@pytest.mark.verify
def test_a_temporary_server_of_a_killed_user_leaves_nothing(arrive: Arrive) -> None:
    user = arrive()
    watchdog = user.supervisor
    user.kill()
    await_ended(watchdog)
    assert ended(user.postmaster)
    assert not user.home.exists()


@pytest.mark.verify
def test_a_database_is_made_once_by_many(project: Path) -> None:
    with Embedded(project) as server:
        with ThreadPoolExecutor(6) as pool:
            list(pool.map(server.ensure_database, ['odd "name"'] * 6))
        assert query(server, "SELECT current_database()", 'odd "name"') == [('odd "name"',)]


def test_settings_that_would_break_the_sharing_are_refused(project: Path) -> None:
    with pytest.raises(EmbeddedError, match="port"):
        Embedded(project, settings={"port": "5433"})


@pytest.mark.verify
def test_a_setting_that_postgres_refuses_is_named(project: Path) -> None:
    with pytest.raises(EmbeddedError, match="shared_buffers"):
        Embedded(project, settings={"shared_buffers": "plenty"}).start()
