"""Retention (fault 20): what is old leaves the log, then goes; what anybody needs stays, and it is said who needs it."""

from __future__ import annotations

import psycopg
import pytest
from tests.upkeep.house import House

pytestmark = pytest.mark.also_on(15, 16)


def reasons(house: House, name: str) -> str:
    return str(house.value("select coalesce(kept, '') from outrider.segment where name = %s", name))


def test_the_life_of_a_segment(house: House) -> None:
    """Old and read by all: detached. Wanted: attached for a while. After the grace: dropped, then its receipts."""
    house.register("a.handler", "handler")
    house.publish(10)
    assert house.read_all("a.handler") == 10
    old = house.cut()
    event = house.value("select id from outrider.outbox limit 1")
    house.ask("select outrider.withdraw(%s, 'ann')", event)
    house.publish(3)
    assert house.read_all("a.handler") == 3
    house.age(44)
    assert house.tidy() == [], "not old enough"
    house.age(2)
    assert [row.action for row in house.ask("select * from outrider.upkeep_log(true)")] == ["detached"]
    assert house.segments(f"name = '{old}'")[0].detached_at is None, "a dry run detaches nothing"
    assert house.tidy() == [("detached", old)]
    assert house.value("select count(*) from outrider.outbox") == 3
    assert house.ask("select * from outrider.outbox_replay(%s)", event)[0].outcome == "not_found"
    assert house.ask("select * from outrider.upkeep_receipts()") == [], "it can be attached again, so its receipts stay"

    with pytest.raises(psycopg.Error, match="no detached segment 'outbox_s4'"):
        house.ask("select outrider.attach_segment('outbox_s4')")
    [back] = house.ask("select * from outrider.attach_segment(%s, 3, 'ann', 'a question')", old)
    assert (back.action, back.detail) == ("attached", "0 to 10")
    assert (
        house.value("select details ->> 'reason' from outrider.audit where action = 'attach_segment'") == "a question"
    )
    assert house.value("select count(*) from outrider.outbox") == 13
    assert house.read_all("a.handler") == 0, "nobody reads it again"
    assert house.ask("select * from outrider.outbox_replay(%s)", event)[0].outcome == "skipped_handled"
    assert house.tidy() == [], "it is wanted for three days"
    house.age(4)
    assert house.tidy() == [("detached", old)]
    house.age(6)
    assert house.tidy() == []
    house.age(2)
    assert house.tidy() == [("dropped", old)]
    assert house.value("select to_regclass('outrider.' || %s) is null", old)
    assert [row.action for row in house.ask("select action from outrider.audit where by = 'upkeep' order by id")] == [
        "detach_segment", "detach_segment", "drop_segment"
    ]  # fmt: skip
    assert [(row.subject, row.number) for row in house.ask("select * from outrider.upkeep_traces()")] == [
        ("withdrawals", 1)
    ]
    assert house.ask("select * from outrider.upkeep_receipts()") == [], "58 days old, and kept for 67"
    house.age(10)
    assert house.ask("select action, number from outrider.upkeep_receipts()") == [("expired", 10)]
    assert house.value("select count(*) from outrider.event_handled") == 3, "those of the segment that is there stay"
    house.age(400)
    assert {row.subject for row in house.ask("select * from outrider.upkeep_traces()")} == {"audit"}
    assert house.value("select count(*) from outrider.audit") == 0


def test_what_a_cursor_has_not_read_stays(house: House) -> None:
    house.register("a.slow")
    house.register("a.quick")
    house.publish(10)
    house.read_all("a.quick")
    old = house.cut()
    house.age(100)
    assert house.tidy() == [("kept", old)]
    assert reasons(house, old) == "a.slow has not read it"
    assert house.read_all("a.slow") == 10
    assert house.tidy() == [("detached", old)]


def test_a_canary_that_was_cut_off_keeps_nothing(house: House, database: str) -> None:
    name = "outrider.canary_00000000"
    house.ask(f"select outrider.canary_begin('{name}')")
    house.publish(10)
    old = house.cut()
    house.age(100)
    assert house.tidy() == [("kept", old)]
    house.ask("update outrider.subscription set created_at = now() - interval '11 min'")
    with psycopg.connect(database) as worker:
        worker.execute("select from outrider.cursor for update")
        assert house.tidy() == [("kept", old)], "a worker has it: upkeep does not wait"
        assert reasons(house, old) == f"{name} has not read it"
    assert house.tidy() == [("detached", old)]


def test_what_was_committed_late_stays_until_it_is_read(house: House, database: str) -> None:
    """The cursor is past the segment; a transaction that had not finished then leaves an event in it."""
    house.register("a.reader")
    with psycopg.connect(database) as slow:
        slow.execute("insert into outrider.outbox (event_type, source, payload) values ('a.late', 'a', '{}')")
        house.publish(10)
        assert house.read_all("a.reader") == 10
        # An open publisher keeps the segment from being cut and from leaving.
        house.ask("select outrider.note_segments()")
        house.age(60)
        [busy] = house.ask("select * from outrider.upkeep_segments()")
        assert (busy.action, busy.subject) == ("busy", "outbox_s0")
        assert f"process {slow.info.backend_pid}" in busy.detail
    old = house.cut()
    house.age(60)
    assert house.tidy() == [("kept", old)], "it has committed, and nobody has read it"
    assert reasons(house, old) == "a.reader has not read it"
    assert house.read_all("a.reader") == 1
    assert house.tidy() == [("detached", old)]


def test_a_prepared_publisher_is_not_lost(house: House, database: str) -> None:
    """It commits into a segment that is long past, after upkeep has come by."""
    house.register("a.reader")
    with psycopg.connect(database, autocommit=True) as slow:
        slow.execute("begin")
        slow.execute("set local outrider.notify = off")
        slow.execute("insert into outrider.outbox (event_type, source, payload) values ('a.late', 'a', '{}')")
        slow.execute("prepare transaction 'upkeep_late'")
    # The segment is past by its numbers, without having been cut.
    house.ask("select setval('outrider.outbox_seq', 1000000)")
    house.publish(2)
    house.read_all("a.reader")
    house.ask("select outrider.note_segments()")
    house.age(100)
    assert house.tidy() == [("kept", "outbox_s0")]
    assert "is open (prepared)" in reasons(house, "outbox_s0")
    # Even if it were not seen at first, the lock is not to be had.
    house.ask(
        """create or replace function outrider.debts(p_segment outrider.segment) returns setof text
           language sql as 'select null where false'"""
    )
    assert house.tidy() == [("busy", "outbox_s0")]
    house.ask("commit prepared 'upkeep_late'")
    assert house.read_all("a.reader") == 1


def test_it_looks_again_under_the_lock(house: House) -> None:
    """What changes between the first look and the lock is seen: here the first look is blind."""
    house.register("a.reader")
    house.publish(3)
    old = house.cut()
    house.age(50)
    house.ask("alter function outrider.debts rename to all_debts")
    house.ask(
        """create function outrider.debts(p_segment outrider.segment) returns setof text language sql as $$
               select * from outrider.all_debts(p_segment) where exists (
                   select from pg_locks where pid = pg_backend_pid() and relation = 'outrider.outbox'::regclass
                                          and mode = 'AccessExclusiveLock') $$"""
    )
    assert house.tidy() == [("kept", old)]
    house.read_all("a.reader")
    assert house.tidy() == [("detached", old)]


OWED = {
    "delivery": """insert into outrider.delivery (subscription, partition, seq, event_id, event_type, status, head, reached,
                       run_at)
                   select 'a.handler', 0, seq, id, event_type, %(status)s, %(status)s = 'pending', true, now()
                   from outrider.outbox where seq = 7""",
    "job": """insert into outrider.job (subscription, seq, event_id, event_type, status, run_at, queue)
              select 'a.handler', seq, id, event_type, %(status)s, now(), 'default' from outrider.outbox where seq = 7""",
}


@pytest.mark.parametrize("table", OWED)
@pytest.mark.parametrize("status", ["pending", "failed"])
def test_what_is_owed_out_of_line_stays(house: House, status: str, table: str) -> None:
    house.register("a.handler", "handler")
    house.publish(10)
    house.read_all("a.handler")
    old = house.cut()
    house.conn.execute(OWED[table].encode(), {"status": status})
    house.age(44)
    assert house.ask("select * from outrider.upkeep_dead_letters()") == []
    house.age(4)
    house.ask(f"update outrider.{table} set created_at = now()")
    assert house.tidy() == [("kept", old)]
    told = "1 events that wait" if status == "pending" else "1 dead letters"
    assert reasons(house, old) == f"a.handler has {told} of it"
    house.age(46)
    expired = house.ask("select * from outrider.upkeep_dead_letters()")
    if status == "pending":
        assert expired == []
        assert house.tidy() == [("kept", old)]
        return
    assert [(row.action, row.subject, row.number) for row in expired] == [("expired", "dead letters of a.handler", 1)]
    assert (
        house.value("select details ->> 'dead_letters' from outrider.audit where action = 'expire_dead_letters'") == "1"
    )
    assert house.tidy() == [("detached", old)]


@pytest.mark.verify
def test_what_is_owed_behind_ten_thousand_that_are_not_stays(house: House) -> None:
    house.register("a.handler", "handler")
    house.publish(10_010)
    house.read_all("a.handler")
    old = house.cut()
    house.ask(
        """insert into outrider.delivery (subscription, partition, seq, event_id, event_type, status, head, reached, run_at)
           select 'a.handler', 0, seq, id, event_type, case when seq > 10008 then 'pending' else 'discarded' end,
                  seq > 10008, true, now()
           from outrider.outbox"""
    )
    house.age(46)
    house.ask("update outrider.delivery set created_at = now()")
    assert house.tidy() == [("kept", old)]
    assert reasons(house, old) == "a.handler has 2 events that wait of it"


def test_what_waits_for_an_event_that_is_gone_is_a_dead_letter(house: House) -> None:
    """Somebody has dropped a segment by hand: it is seen, and what is there is handled."""
    house.register("a.handler", "handler")
    house.publish(4)
    house.read_all("a.handler")
    house.ask("delete from outrider.event_handled")
    house.ask(
        """insert into outrider.delivery (subscription, partition, seq, event_id, event_type, status, head, reached, run_at)
           select 'a.handler', 0, seq, id, event_type, 'pending', true, true, now() from outrider.outbox where seq < 3"""
    )
    house.ask("delete from outrider.outbox where seq = 2")
    assert house.read_all("a.handler") == 1
    assert house.ask("select seq, status, last_error_code from outrider.delivery") == [(2, "failed", "event_missing")]


@pytest.mark.parametrize("table", OWED)
def test_what_was_discarded_goes_with_its_segment(house: House, table: str) -> None:
    house.register("a.handler", "handler")
    house.publish(10)
    house.read_all("a.handler")
    old = house.cut()
    house.conn.execute(OWED[table].encode(), {"status": "discarded"})
    house.age(46)
    house.ask(f"update outrider.{table} set created_at = now()")
    assert house.tidy() == [("detached", old)]
    assert house.value("select count(*) from outrider.owed") == 0
    assert house.value("select details ->> 'discarded' from outrider.audit where action = 'detach_segment'") == "1"


def test_a_subscription_that_is_behind_keeps_its_receipts(house: House) -> None:
    """It may still meet the key of one of them: promised for as long as receipts are kept, however long it was paused."""
    for name in ("a.handler", "a.other"):
        house.register(name, "handler")
    first = "insert into outrider.outbox (event_type, source, idempotency_key, payload) values ('a.x', 'a', 'k', '{}')"
    house.ask(first)
    house.publish(10)
    assert (house.read_all("a.handler"), house.read_all("a.other")) == (11, 11)
    old = house.cut()
    house.ask(first)
    assert house.read_all("a.other") == 0, "handled already"
    house.age(60)
    assert house.tidy() == [("detached", old)]
    house.age(8)
    assert house.tidy() == [("dropped", old)]
    told = house.ask("select * from outrider.upkeep_receipts()")
    assert [(row.action, row.number) for row in told] == [("kept", 0), ("expired", 11)]
    assert "of a.handler, which has not handled what is older than 7 days" in told[0].detail
    assert house.ask("select distinct handler_name from outrider.event_handled") == [("a.handler",)]
    assert house.read_all("a.handler") == 0, "handled already, 68 days ago"
    house.age(1)
    assert house.ask("select action, number from outrider.upkeep_receipts()") == [("expired", 11)]


def test_receipts_of_enqueued_jobs_go_by_their_age(house: House) -> None:
    house.ask(
        """insert into outrider.event_handled (handler_name, idempotency_key, event_id, seq, generation, content_class)
           select 'a.job', n::text, gen_random_uuid(), 0, 0, 'internal' from generate_series(1, 20) as n"""
    )
    house.age(66)
    assert house.ask("select * from outrider.upkeep_receipts()") == []
    house.age(2)
    assert house.ask("select action, number from outrider.upkeep_receipts()") == [("expired", 20)]


def test_a_job_type_can_keep_its_receipts_longer_and_never_shorter(house: House) -> None:
    for name, keep in (("a.short", "7 days"), ("a.long", "100 days")):
        house.register(name, "job")
        house.ask("select outrider.register_job(%s, null, null, null, null, %s::interval)", name, keep)
        house.ask(
            """insert into outrider.event_handled (handler_name, idempotency_key, event_id, seq, generation, content_class)
               select %s, n::text, gen_random_uuid(), 0, 0, 'internal' from generate_series(1, 20) as n""",
            name,
        )
    expired = []
    for days in (66, 2, 30, 1, 2):
        house.age(days)
        foretold = house.ask("select action, number from outrider.upkeep_receipts(p_dry => true)")
        expired.append(house.ask("select action, number from outrider.upkeep_receipts()"))
        assert foretold == expired[-1]
    assert expired == [[], [("expired", 20)], [], [], [("expired", 20)]]


def test_upkeep_rests_until_a_receipt_that_is_kept_longer_is_due(house: House) -> None:
    house.register("a.long", "job")
    house.ask("select outrider.register_job('a.long', null, null, null, null, '100 days')")
    house.ask(
        """insert into outrider.event_handled (handler_name, idempotency_key, event_id, seq, generation, content_class)
           values ('a.long', 'k', gen_random_uuid(), 0, 0, 'internal')"""
    )
    house.ask("select * from outrider.upkeep_receipts()")
    for days, walks in ((98, False), (3, True)):
        house.age(days)
        house.ask("select * from outrider.upkeep_receipts()")
        walked = "select ran_at > now() - interval '1 hour' from outrider.upkeep where task = 'receipts'"
        assert house.value(walked) is walks


def test_whatever_the_session_has_set_and_asks_for(house: House) -> None:
    before = house.segments()
    house.ask("set standard_conforming_strings = off")
    assert house.ask("select * from outrider.upkeep_segments()") == []
    assert house.tidy() == []
    house.ask("reset standard_conforming_strings")
    assert house.segments() == before
    for step, asked in (("receipts", -5), ("traces", 0), ("dead_letters", 10**6), ("reap", -1)):
        with pytest.raises(psycopg.Error, match="1 to 10000"):
            house.ask(f"select * from outrider.upkeep_{step}(false, {asked})")
    with house.conn.transaction():
        house.ask("select * from outrider.upkeep_segments()")
        assert house.value("show idle_in_transaction_session_timeout") == "1s"


def test_a_dead_letter_that_the_log_was_not_read_up_to_stays(house: House) -> None:
    house.register("a.handler", "handler")
    house.publish(1)
    house.ask(
        """insert into outrider.delivery (subscription, partition, seq, event_id, event_type, status, head, reached, run_at)
           select 'a.handler', 0, seq, id, event_type, 'failed', true, false, now() from outrider.outbox"""
    )
    house.age(100)
    assert house.ask("select * from outrider.upkeep_dead_letters()") == []


def test_what_a_relay_may_go_back_to_stays(house: House) -> None:
    house.register("a.relay")
    house.ask("insert into outrider.stream_mark (subscription, positions, cursor)"
              " select subscription, '{}', to_jsonb(c) from outrider.cursor as c")  # fmt: skip
    house.publish(10)
    house.read_all("a.relay")
    old = house.cut()
    house.age(100)
    assert house.tidy() == [("kept", old)]
    assert reasons(house, old).startswith("the relay a.relay may go back to its mark of")
    house.ask("update outrider.stream_mark set cursor = (select to_jsonb(c) from outrider.cursor as c)")
    house.ask("""insert into outrider.stream_replayed (subscription, seq, event_id, event_type, cycle, failure_history)
                 values ('a.relay', 3, gen_random_uuid(), 'a.happened', 1, '[]')""")
    assert house.tidy() == [("kept", old)]
    assert "send a dead letter of it again" in reasons(house, old)
    house.ask("delete from outrider.stream_replayed")
    assert house.tidy() == [("detached", old)]


def test_others_need_a_detached_segment(house: House) -> None:
    house.publish(1)
    old = house.cut()
    house.age(50)
    assert house.tidy() == [("detached", old)]
    house.ask(f"create view public.mine as select * from outrider.{old}")
    house.age(8)
    assert house.tidy() == [("kept", old)]
    assert "depend" in reasons(house, old)
    house.ask("drop view public.mine")
    assert house.tidy() == [("dropped", old)]


def test_receipts_go_page_by_page(house: House) -> None:
    house.register("a.handler", "handler")
    house.publish(5000)
    house.read_all("a.handler")
    house.cut()
    house.age(50)
    house.tidy()
    house.age(10)
    house.tidy()
    house.age(10)
    steps = []
    while rows := house.ask("select * from outrider.upkeep_receipts(false, 10)"):
        steps += [(row.action, row.number) for row in rows]
        if rows[-1].action != "more":
            break
    assert len(steps) > 3
    assert sum(number for _, number in steps) == 5000
    assert max(number for _, number in steps) < 2000
    assert house.value("select count(*) from outrider.event_handled") == 0
    assert house.ask("select * from outrider.upkeep_receipts()") == [], "it rests"
    assert house.value("select next_at > now() + interval '50 minutes' from outrider.upkeep where task = 'receipts'")


def test_receipts_that_are_kept_for_less_go_soon(house: House) -> None:
    """Not when those that were met in the last round would have been due before the change."""
    house.register("a.handler", "handler")
    house.publish(10)
    house.read_all("a.handler")
    house.cut()
    house.age(46)
    house.tidy()
    house.age(8)
    house.tidy()
    assert house.ask("select * from outrider.upkeep_receipts()") == [], "13 days are left"
    for name, days in (("log_days", 20), ("dead_letter_days", 20), ("receipt_days", 40)):
        house.ask("select outrider.set_setting(%s, %s)", f"retention.{name}", str(days))
    assert house.ask("select * from outrider.upkeep_receipts()") == [], "it has been round within the hour"
    house.ask("update outrider.upkeep set next_at = next_at - interval '61 minutes'")
    [gone] = house.ask("select * from outrider.upkeep_receipts()")
    assert (gone.action, gone.number) == ("expired", 10)


def test_jobs_that_nobody_claims_any_more_are_reaped(house: House) -> None:
    house.ask(
        """insert into outrider.job (subscription, event_id, status, run_at, queue, payload, locked_by, locked_at,
               lease_token, lease_expires_at, attempts)
           select 'a.job', gen_random_uuid(), 'in_flight', now(), 'default', '{}', gen_random_uuid(), now(), 1,
                  now() - interval '2 min', 1"""
    )
    assert [row.number for row in house.ask("select * from outrider.upkeep_reap(true)")] == [1]
    assert [row.number for row in house.ask("select * from outrider.upkeep_reap()")] == [1]
    assert house.value("select status from outrider.job") == "pending"
    assert house.ask("select * from outrider.upkeep_reap()") == []
