"""Upkeep under load: nobody waits long behind it or fails because of it, and nothing is lost or read twice."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
import pytest
from tests.upkeep.house import House

pytestmark = pytest.mark.also_on(15)

PUBLISH = """insert into outrider.outbox (event_type, source, aggregate_id, payload)
             values ('a.happened', 'a', %s, '{}'), ('a.happened', 'a', %s, '{}') returning seq"""
TAKE = "select outcome, seq from outrider.take('a.reader', null, 500)"
PATIENCE = "set lock_timeout = '5s'"
"""25 times as long as upkeep may wait for a lock: who waits longer behind it fails."""


class Crowd:
    """Publishers and takers that go on until they are told to stop. Their statements are prepared."""

    def __init__(self, dsn: str) -> None:
        self.dsn = dsn
        self.stop = threading.Event()
        self.published: list[int] = []
        self.taken: list[int] = []
        self.errors: list[Exception] = []
        self.more = threading.Condition()

    def publish(self, name: str) -> None:
        with psycopg.connect(self.dsn, autocommit=True) as conn:
            conn.execute(PATIENCE)
            while not self.stop.is_set():
                rows = conn.execute(PUBLISH, [name, name], prepare=True).fetchall()
                with self.more:
                    self.published += [seq for (seq,) in rows]
                    self.more.notify_all()

    def take(self, _: str) -> None:
        with psycopg.connect(self.dsn, autocommit=True) as conn:
            conn.execute(PATIENCE)
            ending = False
            while True:
                with conn.transaction():
                    head, *rows = conn.execute(TAKE, prepare=True).fetchall()
                with self.more:
                    self.taken += [seq for _, seq in rows]
                if ending and head[0] in ("idle", "done"):
                    return
                ending = ending or self.stop.is_set()

    def progress(self) -> None:
        """Everybody who publishes has published again."""
        with self.more:
            seen = len(self.published)
            assert self.more.wait_for(lambda: self.errors or len(self.published) > seen + 20, 60)
        assert not self.errors

    @contextmanager
    def busy(self) -> Iterator[None]:
        def guarded(what: object, name: str) -> None:
            try:
                what(name)  # type: ignore[operator]
            except Exception as error:
                with self.more:
                    self.errors.append(error)
                    self.more.notify_all()

        work = [(self.publish, "p1"), (self.publish, "p2"), (self.take, "t1"), (self.take, "t2")]
        threads = [threading.Thread(target=guarded, args=each) for each in work]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self.stop.set()
            for thread in threads:
                thread.join(60)
        assert not self.errors


@pytest.mark.verify
def test_nobody_waits_and_nothing_is_lost(house: House, database: str) -> None:
    house.register("a.reader")
    house.ask("update outrider.setting set value = 1000 where name = 'segments.size'")
    crowd = Crowd(database)
    done: list[str] = []
    with crowd.busy():
        crowd.progress()
        with psycopg.connect(database) as reader:
            reader.execute("select count(*) from outrider.outbox")  # it holds the log until its transaction ends
            house.ask("select outrider.note_segments()")
            house.age(8)
            for _ in range(3):
                [busy] = house.ask("select * from outrider.upkeep_segments()")
                assert (busy.action, busy.subject) == ("busy", "outbox_s0")
                assert f"process {reader.info.backend_pid}" in busy.detail
                crowd.progress()
        while len(done) < 12:  # each of these takes the log for itself, in the midst of it all
            house.ask("select outrider.note_segments()")
            house.age(8)
            if done.count("cut") < 8:
                done += [
                    row.action for row in house.ask("select * from outrider.upkeep_segments()") if row.action == "cut"
                ]
            house.age(50)
            done += [row.action for row in house.ask("select * from outrider.upkeep_log()") if row.action != "busy"]
            done = [action for action in done if action != "kept"]
            crowd.progress()
        house.ask("select setval('outrider.outbox_seq', greatest(nextval('outrider.outbox_seq'), 13000000))")
        made = []
        while "made" not in made:
            made = [row.action for row in house.ask("select * from outrider.upkeep_segments()")]
        crowd.progress()
    assert {"cut", "detached"} <= set(done)
    assert sorted(crowd.taken) == sorted(crowd.published), "each exactly once"
    left = house.value("select count(*) from outrider.outbox")
    assert left < len(crowd.published), "some have left the log"
