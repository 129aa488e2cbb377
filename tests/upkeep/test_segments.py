"""Segments: made ahead of the log, ended when they are old, and never in the way of a publisher."""

from __future__ import annotations

import re
from pathlib import Path

import psycopg
import pytest
from tests.upkeep.house import SIZE, House

from outrider.postgres import statement

pytestmark = pytest.mark.also_on(15, 16)

SMALL = "update outrider.setting set value = 1000 where name = 'segments.size'"


def in_catalogue(house: House) -> list[tuple[str, str]]:
    return [
        (row.relname, row.bound)
        for row in house.ask(
            """select c.relname, pg_get_expr(c.relpartbound, c.oid) as bound
               from pg_inherits as i join pg_class as c on c.oid = i.inhrelid
               where i.inhparent = 'outrider.outbox'::regclass"""
        )
    ]


def test_a_new_log_has_enough_and_nothing_is_touched(house: House) -> None:
    before = sorted(in_catalogue(house))
    assert house.ask("select * from outrider.upkeep_segments()") == []
    assert sorted(in_catalogue(house)) == before
    assert len(house.segments()) == 17
    assert house.segments()[0].first_seq == 0
    assert house.segments()[-1].last_seq is None


def test_segments_are_made_before_the_last_one_while_it_is_empty(house: House) -> None:
    house.ask(SMALL)
    house.ask("select setval('outrider.outbox_seq', 8999999)")
    house.publish(2)
    assert [row.action for row in house.ask("select * from outrider.upkeep_segments(true)")] == ["make"]
    assert len(house.segments()) == 17, "a dry run makes nothing"
    [made] = house.ask("select * from outrider.upkeep_segments()")
    assert (made.action, made.number, made.detail) == ("made", 10, "16000000 to 16009999")
    assert house.ask("select * from outrider.upkeep_segments()") == []
    bounds = sorted((row.first_seq, row.last_seq) for row in house.segments())
    assert bounds[-1][0] == 16_010_000 or bounds[-1][1] is None
    for one, following in zip(house.segments(), house.segments()[1:], strict=False):
        assert following.first_seq == one.last_seq + 1, "no number without a segment"
    house.ask("select setval('outrider.outbox_seq', 15999998)")
    house.publish(3 * SIZE)
    assert house.value("select count(*) from outrider.outbox_from_16000000") == SIZE
    assert house.value("select count(*) from outrider.outbox") == 3 * SIZE + 2
    like = """select array_agg(a.attname || format_type(a.atttypid, a.atttypmod) || a.attnotnull || a.attidentity::text
                               || coalesce(pg_get_expr(d.adbin, d.adrelid), '') order by a.attname) as columns,
                     (select array_agg(pg_get_constraintdef(c.oid) order by pg_get_constraintdef(c.oid))
                      from pg_constraint as c
                      where c.conrelid = a.attrelid and c.contype <> 'n') as checks,
                     (select array_agg(i.indkey::text || i.indisunique || i.indisprimary order by i.indkey::text)
                      from pg_index as i where i.indrelid = a.attrelid) as indexes,
                     (select count(*) from pg_index as i join pg_inherits as h on h.inhrelid = i.indexrelid
                      where i.indrelid = a.attrelid) as attached,
                     c.reloptions
              from pg_attribute as a join pg_class as c on c.oid = a.attrelid
              left join pg_attrdef as d on d.adrelid = a.attrelid and d.adnum = a.attnum
              where a.attrelid = %s::regclass and a.attnum > 0 group by a.attrelid, c.relname, c.reloptions"""
    assert house.ask(like, "outrider.outbox_from_16000000") == house.ask(like, "outrider.outbox_s3"), "as if born there"


def test_the_last_segment_is_ended_when_it_is_written_to(house: House) -> None:
    house.ask(SMALL)
    house.ask("select setval('outrider.outbox_seq', 17000000)")
    house.publish(5)
    made = [row for _ in range(3) for row in house.ask("select * from outrider.upkeep_segments()")]
    assert [(row.action, row.number) for row in made] == [("made", 1), ("made", 15)], (
        "one under the lock, then the others"
    )
    assert [(row.first_seq, row.last_seq) for row in house.segments("name = 'outbox_from_16000000'")] == [
        (16_000_000, 17_000_005)
    ]
    house.publish(1)
    assert house.value("select count(*) from outrider.outbox_from_17000006") == 1
    assert house.value("select count(*) from outrider.outbox") == 6
    assert house.segments("last_seq is null")[0].name == "outbox_tail"


def test_a_missing_last_segment_comes_back(house: House) -> None:
    house.ask("drop table outrider.outbox_tail")
    [made] = house.ask("select * from outrider.upkeep_segments()")
    assert made.action == "made"
    assert house.segments("last_seq is null")[0].first_seq == 17_000_000


def test_an_empty_log_of_one_segment_without_end(house: House) -> None:
    for name, _ in in_catalogue(house):
        house.ask(f"drop table outrider.{name}")
    house.ask("create table outrider.whole partition of outrider.outbox for values from (minvalue) to (maxvalue)")
    [made] = house.ask("select * from outrider.upkeep_segments()")
    assert (made.action, made.number) == ("made", 1)
    house.publish(3)
    assert house.value("select count(*) from outrider.outbox_from_1") == 3


def test_a_quiet_log_is_cut_by_time(house: House) -> None:
    house.register("a.reader")
    house.publish(10)
    assert house.cut() == "outbox_s0"
    first, second = house.segments()[:2]
    assert (first.last_seq, second.name, second.first_seq, second.last_seq) == (10, "outbox_from_11", 11, 999_999)
    assert first.closed_at is not None
    assert second.begun_at is None
    assert house.ask("select * from outrider.upkeep_segments()") == []
    house.age(30)
    assert house.ask("select * from outrider.upkeep_segments()") == [], "one that nobody writes to is not cut"
    house.publish(1)
    assert house.read_all("a.reader") == 11
    assert house.value("select count(*) from outrider.outbox_from_11") == 1


def test_a_large_one_is_not_cut(house: House) -> None:
    function = dict(statement.functions())["upkeep_segments"].replace("64 * 1024 * 1024", "8192")
    house.ask(statement.render(function, "outrider"))
    house.publish(500)
    house.ask("select outrider.note_segments()")
    house.age(8)
    assert house.ask("select * from outrider.upkeep_segments()") == []
    house.ask("select setval('outrider.outbox_seq', 17000000)")
    house.publish(500)
    [kept] = house.ask("select * from outrider.upkeep_segments()")
    assert (kept.action, kept.subject) == ("kept", "outbox_tail")


def test_one_that_would_be_too_large_in_its_time_is_ended_before(house: House) -> None:
    """Too large to be read under the lock, it would take years to fill; so it is ended while that is cheap, and those after
    it are as large as the log will fill in seven days."""
    function = dict(statement.functions())["upkeep_segments"].replace("64 * 1024 * 1024", "2 * 1024 * 1024")
    house.ask(statement.render(function, "outrider"))
    house.ask("select setval('outrider.outbox_seq', 12000)")
    house.publish(500)
    house.ask("select outrider.note_segments()")
    house.age(2)
    assert house.ask("select * from outrider.upkeep_segments()") == [], "it is small"
    house.publish(12_000)
    assert house.value("select pg_relation_size('outrider.outbox_s0')") in range(3 * 2**19, 2**21)
    [cut] = house.ask("select * from outrider.upkeep_segments()")
    assert (cut.action, cut.subject) == ("cut", "outbox_s0")
    first, second, third, fourth = house.segments()[:4]
    assert (first.last_seq, second.first_seq, third.last_seq, fourth.first_seq) == (24_500, 24_501, 999_999, 1_000_000)
    assert second.last_seq - 24_500 == pytest.approx(24_500 * 7 / 2, rel=0.01)
    assert third.first_seq == second.last_seq + 1
    assert house.ask("select * from outrider.upkeep_segments()") == []

    house.publish(12_000)
    house.ask("select outrider.note_segments()")
    house.ask("update outrider.segment set begun_at = begun_at - interval '10 minutes' where closed_at is null")
    assert house.ask("select * from outrider.upkeep_segments()") == [], "at its pace it will be full in time"


def test_what_somebody_detaches_by_hand_is_theirs(house: House) -> None:
    house.ask("alter table outrider.outbox detach partition outrider.outbox_s3")
    house.age(100)
    assert house.tidy() == []
    assert house.segments("name = 'outbox_s3'") == []
    assert house.value("select to_regclass('outrider.outbox_s3') is not null")


@pytest.mark.parametrize(
    ("change", "names"),
    [
        ("value = 53 where name = 'retention.log_days'", ("retention.log_days", "retention.receipt_days")),
        ("value = 15 where name = 'retention.log_grace_days'", ("retention.log_grace_days", "retention.receipt_days")),
        ("value = 52 where name = 'retention.receipt_days'", ("retention.log_grace_days", "retention.receipt_days")),
        ("value = 60 where name = 'retention.dead_letter_days'", ("retention.dead_letter_days", "retention.receipt_days")),
    ],
)  # fmt: skip
def test_receipts_outlive_all_that_can_be_replayed(house: House, change: str, names: tuple[str, str]) -> None:
    values = dict(house.ask("select name, value from outrider.setting where name like 'retention.%'"))
    log, grace = values["retention.log_days"], values["retention.log_grace_days"]
    assert (log, grace, values["retention.receipt_days"]) == (45, 7, 60)
    assert log + grace == 52 < values["retention.receipt_days"]
    with pytest.raises(psycopg.Error) as refused:
        house.ask(f"update outrider.setting set {change}")
    assert refused.value.sqlstate == "OR009"
    assert all(name in str(refused.value) for name in names)
    with pytest.raises(psycopg.Error, match="unset"):
        house.ask("delete from outrider.setting where name = 'retention.receipt_days'")
    with house.conn.transaction():
        house.ask(f"update outrider.setting set {change}")
        house.ask("update outrider.setting set value = 100 where name = 'retention.receipt_days'")


def test_the_settings_on_the_page(house: House) -> None:
    page = (Path(__file__).parents[2] / "docs/upkeep.md").read_text()
    named = {
        name: int(value.replace(",", "")) for name, value in re.findall(r"^\| `([\w.]+)` \| ([\d,]+) \|", page, re.M)
    }
    there = "select name, value from outrider.setting where name ~ '^(retention|segments|upkeep)[.]'"
    assert named == dict(house.ask(there))
    for name, value in re.findall(r"^outrider setting set (\S+) (\d+)$", page, re.M):
        house.ask("select outrider.set_setting(%s, %s)", name, value)
    assert dict(house.ask(there))["retention.log_days"] == 90
