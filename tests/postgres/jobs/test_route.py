"""Jobs of events. An open transaction of an operator holds up the event of its own job, and no other."""

from __future__ import annotations

import psycopg
import pytest
from tests.postgres.jobs import sqljobs
from tests.postgres.jobs.sqljobs import Conn, claim, done, enqueue, fail, settle
from tests.postgres.jobs.test_unique import Session
from tests.postgres.jobs.test_user_locks import conn, one, user

__all__ = ["conn", "user"]

pytestmark = [pytest.mark.also_on(15), pytest.mark.usefixtures("events")]

NAME = "mail.notify"


def published(conn: Conn, key: str = "seven") -> None:
    conn.execute("select outrider.publish('order.placed', '{\"n\": 7}', idempotency_key => %s)", [key])


@pytest.fixture
def events(conn: Conn) -> None:
    conn.execute("select outrider.register(%s, 'job', 'mail', '{order.placed}')", [NAME])


def routed(conn: Conn) -> tuple[str, int, float | None]:
    call = "select outcome, routed, due_in from outrider.route(%s, 100, 1000, null, 'default', 0)"
    row = conn.execute(call, [NAME]).fetchone()
    assert row is not None
    return row[0], row[1], row[2]


def waiting(conn: Conn) -> list[str]:
    keys = "select o.idempotency_key from outrider.delivery join outrider.outbox as o using (seq) order by o.seq"
    return [key for (key,) in conn.execute(keys)]


def a_second_later(conn: Conn) -> None:
    conn.execute("update outrider.delivery set run_at = now()")


def keys(conn: Conn) -> list[str]:
    """The keys of the jobs that can be claimed."""
    ids = [job.delivery for job in claim(conn, 9, [NAME]).jobs]
    text = "select unique_key from outrider.job where id = any (%s) order by id"
    return [key.removeprefix("order.placed:") for (key,) in conn.execute(text, [ids])]


def held(user: Conn, conn: Conn, by: str) -> None:
    """A job of the key 'seven' that this user has changed and not committed."""
    published(conn)
    assert routed(conn)[1] == 1
    [(event, job)] = conn.execute("select event_id, id from outrider.job").fetchall()
    if by == "replay":
        settle(conn, one(conn, NAME), "dead", code="E", message="no")
        assert sqljobs.replay(user, job) == ["replayed"]
    elif by == "cancel":
        assert sqljobs.cancel(user, event) == "cancelled"
    elif by == "run_now":
        user.execute("select from outrider.run_now(%s)", [event])
    else:
        user.execute("select outrider.change_jobs('cancel', %s, '{pending}')", [[job]])


BY = pytest.mark.parametrize("by", ["cancel", "run_now", "change_jobs", "replay"])


@BY
@pytest.mark.parametrize("ends", ["commit", "rollback"])
def test_the_others_are_routed(conn: Conn, user: Conn, by: str, ends: str) -> None:
    held(user, conn, by)
    published(conn)
    published(conn, "eight")
    assert routed(conn)[:2] == ("more", 1)
    outcome, number, due_in = routed(conn)
    assert (outcome, number) == ("idle", 0)
    assert due_in is not None
    assert 0 < due_in <= 1
    assert keys(conn) == ["eight"]
    a_second_later(conn)
    assert routed(conn)[1] == 0
    assert waiting(conn) == ["seven"]
    getattr(user, ends)()
    a_second_later(conn)
    stays = (by, ends) not in [("cancel", "commit"), ("change_jobs", "commit"), ("replay", "rollback")]
    assert routed(conn)[1] == int(not stays)
    assert waiting(conn) == []
    assert keys(conn) == ["seven"]
    assert routed(conn) == ("idle", 0, None)


def test_of_two_that_are_held_the_first_becomes_the_job(conn: Conn, user: Conn) -> None:
    held(user, conn, "cancel")
    for _ in range(2):
        published(conn)
        routed(conn)
    assert waiting(conn) == ["seven", "seven"]
    user.commit()
    a_second_later(conn)
    assert routed(conn)[1] == 1
    made = "select max(seq) - min(seq), count(*) from outrider.job"
    assert conn.execute(made).fetchone() == (1, 2)
    assert waiting(conn) == []


def test_one_that_is_held_while_its_key_is_done(conn: Conn, user: Conn) -> None:
    """A third event with the key is routed first. When its job is done, the held one has a receipt."""
    held(user, conn, "cancel")
    published(conn)
    routed(conn)
    user.commit()
    published(conn)
    assert routed(conn)[1] == 1
    done(conn, one(conn, NAME))
    a_second_later(conn)
    assert routed(conn)[1] == 0
    assert waiting(conn) == []


def test_many_that_are_held(conn: Conn, user: Conn) -> None:
    """Only the first is waited for, since one transaction most likely holds them all."""
    conn.execute("alter function outrider.make_jobs set lock_timeout = '1s'")
    for n in range(30):
        published(conn, str(n))
    assert routed(conn)[1] == 30
    user.execute("select outrider.change_jobs('cancel', array(select id from outrider.job), '{pending}')")
    for n in range(40):
        published(conn, str(n))
    assert routed(conn)[1] == 10
    assert len(waiting(conn)) == 30


def test_one_that_is_held_does_not_divide_the_others(conn: Conn, user: Conn) -> None:
    """Each part is a subtransaction: more than 64 in a transaction slow down every session of the server."""
    held(user, conn, "cancel")
    for n in range(50):
        published(conn, f"first {n}")
        if n == 20:
            published(conn)
    parts = "select count(distinct xmin::text) < %s from outrider.job where unique_key like %s"
    assert routed(conn)[1] == 50
    assert conn.execute(parts, [16, "%first%"]).fetchone() == (True,)
    a_second_later(conn)
    for n in range(50):
        published(conn, f"second {n}")
    assert routed(conn)[1] == 50
    assert conn.execute(parts, [2, "%second%"]).fetchone() == (True,)
    assert waiting(conn) == ["seven"]


def test_a_lock_of_the_whole_table_is_waited_for(conn: Conn, user: Conn) -> None:
    """As of CREATE INDEX, or of a migration. It holds no single event, so none is put aside."""
    published(conn)
    user.execute("lock table outrider.job in share mode")
    conn.execute("set lock_timeout = '100ms'")
    with pytest.raises(psycopg.errors.LockNotAvailable):
        routed(conn)
    user.rollback()
    assert routed(conn)[1] == 1


def test_while_it_is_paused(conn: Conn, user: Conn) -> None:
    held(user, conn, "cancel")
    published(conn)
    routed(conn)
    user.commit()
    a_second_later(conn)
    conn.execute("select outrider.pause(%s)", [NAME])
    assert routed(conn)[:2] == ("paused", 0)
    conn.execute("select outrider.resume(%s)", [NAME])
    assert routed(conn)[1] == 1


def test_one_whose_event_is_withdrawn(conn: Conn, user: Conn) -> None:
    held(user, conn, "cancel")
    published(conn)
    routed(conn)
    user.commit()
    [(event,)] = conn.execute("select event_id from outrider.delivery").fetchall()
    conn.execute("select outrider.withdraw(%s)", [event])
    a_second_later(conn)
    assert routed(conn) == ("idle", 0, None)


def test_an_event_comes_twice_while_the_job_of_the_first_runs(conn: Conn) -> None:
    published(conn)
    assert routed(conn)[1] == 1
    lease = one(conn, NAME)
    published(conn)
    assert routed(conn)[1] == 0
    assert fail(conn, lease) == "retry"
    published(conn)
    assert routed(conn)[1] == 0
    done(conn, one(conn, NAME))
    published(conn)
    assert routed(conn)[1] == 0
    assert not claim(conn, 9, [NAME]).jobs


def test_the_job_of_the_first_is_settled_while_the_second_is_routed(conn: Conn) -> None:
    """The router waits for the settlement at the index, with a snapshot in which there is no receipt yet."""
    conn.execute("alter function outrider.make_jobs set lock_timeout = '30s'")
    published(conn)
    routed(conn)
    lease = one(conn, NAME)
    published(conn)
    with psycopg.connect(conn.info.dsn) as settling:
        done(settling, lease)
        session = Session(conn.info.dsn, routed)
        session.until_it_waits(conn)
        settling.commit()
    assert session.returned()[1] == 0
    assert not claim(conn, 9, [NAME]).jobs


def test_a_dead_letter_of_the_first_is_replayed_while_the_job_of_the_second_runs(conn: Conn) -> None:
    published(conn)
    routed(conn)
    first = one(conn, NAME)
    settle(conn, first, "dead", code="E", message="no")
    published(conn)
    assert routed(conn)[1] == 1
    second = one(conn, NAME)
    assert sqljobs.replay(conn, first.delivery) == ["superseded"]
    done(conn, second)
    assert sqljobs.replay(conn, first.delivery) == ["skipped_handled"]


def test_who_enqueues_the_job_of_an_event_by_hand_stops_no_router(conn: Conn, user: Conn) -> None:
    published(conn)
    enqueue(user, NAME, unique_key="order.placed:seven")
    assert routed(conn)[1] == 1


HANDLER = "orders.mirror"


def taken(conn: Conn, partition: int) -> int:
    take = "select seq, batch from outrider.take(%s, %s, 100, 1000, 0, '{order.placed}')"
    with conn.transaction():
        (_, batch), *events = conn.execute(take, [HANDLER, partition]).fetchall()
        conn.execute("select outrider.settle(%s)", [batch])
    return len(events)


def test_a_receipt_that_an_open_replay_takes_away(conn: Conn, user: Conn) -> None:
    """Another partition meets its key. The event is a duplicate: the replay handles the key again, or the receipt stays."""
    conn.execute("select outrider.register(%s, 'handler', 'orders', '{order.placed}', 2)", [HANDLER])
    text = "select outrider.publish('order.placed', '{}', key => %s, idempotency_key => %s)"
    partition_of = (
        "select hashtextextended(n::text, 0) & 1, max(n::text) from generate_series(1, 9) as n group by 1 order by 1"
    )
    one, other = (key for _, key in conn.execute(partition_of))
    conn.execute(text, [one, "seven"])
    assert taken(conn, 0) == 1
    conn.execute(
        """insert into outrider.delivery (
               subscription, partition, seq, event_id, event_type, status, head, reached, run_at, buried_at)
           select %s, 0, seq, id, event_type, 'failed', true, true, now(), now() from outrider.outbox""",
        [HANDLER],
    )
    forced = "select outcome from outrider.replay(array(select id from outrider.delivery), p_force => true)"
    assert user.execute(forced).fetchall() == [("replayed",)]
    conn.execute(text, [other, "seven"])
    conn.execute(text, [other, "eight"])
    assert taken(conn, 1) == 1
    conn.execute(
        """insert into outrider.delivery (
               subscription, partition, seq, event_id, event_type, status, head, reached, run_at)
           select %s, 1, seq, id, event_type, 'pending', true, true, now() from outrider.outbox
           where aggregate_id = %s and idempotency_key = 'seven'""",
        [HANDLER, other],
    )
    assert taken(conn, 1) == 0, "one that waited for a retry"
    assert conn.execute("select count(*) from outrider.delivery where partition = 1").fetchone() == (0,)
