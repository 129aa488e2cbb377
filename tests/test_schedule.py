"""Schedules as values: what can be declared, which times there are, which of them get a job."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider import Job
from outrider.errors import DeclarationError
from outrider.schedule import MOST_AT_ONCE, Due, Schedule, next_time


class Report(Job, type="schedule.report"):
    day: str = ""


class Unnamed(Job):
    pass


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).astimezone(UTC)


def times(schedule: Schedule, start: str, end: str) -> list[str]:
    """In the schedule's own time zone, with its offset."""
    found, now = [], at(start)
    while (now := schedule.next(now) or datetime.max.replace(tzinfo=UTC)) <= at(end):
        found.append(now.astimezone(schedule._zone).isoformat(timespec="minutes"))
    return found


# Declaration


def test_the_name_is_that_of_the_job_unless_it_has_one() -> None:
    assert Schedule("0 3 * * *", Report()).name == "schedule.report"
    assert Schedule("0 3 * * *", Report(), "shop.nightly").name == "shop.nightly"


@pytest.mark.parametrize(
    ("cron", "message"),
    [
        (
            "0 3 * *",
            "schedule.report: '0 3 \\* \\*' is no schedule: wrong number of fields; the five fields are minute",
        ),
        ("", "wrong number of fields"),
        ("60 3 * * *", "bad minute"),
        ("0 24 * * *", "bad hour"),
        ("0 3 * * NOP", "bad day-of-week"),
        ("0 3 * * */0", "bad day-of-week"),
        (
            "@dayly",
            "the names are @hourly, @daily, @midnight, @weekly, @monthly, @yearly, @annually",
        ),
        ("@reboot", "the names are @hourly"),
        ("@DAILY", "the names are @hourly"),
        ("0 0 30 2 *", "bad day-of-month"),
        ("0 0 31 4 MON#6", "bad day-of-week"),
        ("9" * 5000 + " * * * *", "at most 200 characters"),
        (None, "at most 200 characters"),
        (b"0 3 * * *", "at most 200 characters"),
    ],
)
def test_a_wrong_cron_is_refused(cron: Any, message: str) -> None:
    with pytest.raises(DeclarationError, match=message):
        Schedule(cron, Report())


@pytest.mark.parametrize("zone", ["Mars/Olympus", "Europe", "../etc/passwd", "", "europe berlin", 1, None])
def test_an_unknown_time_zone_is_refused(zone: Any) -> None:
    with pytest.raises(DeclarationError, match=r"schedule.report: time_zone=.* is not known here: write it like"):
        Schedule("0 3 * * *", Report(), time_zone=zone)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"missed": "never"}, "schedule.report: missed='never' is none of once, skip, all"),
        ({"name": "Nightly Report"}, "the name of the schedule 'Nightly Report' is not lower-case words"),
        ({"name": "a" * 201}, "has 201 bytes, at most 200"),
        ({"job": Report}, "pass a job, like Report\\(\\), not its class"),
        ({"job": {"day": ""}}, "pass a job"),
        ({"job": Unnamed()}, "Unnamed has no job type"),
    ],
)
def test_what_else_is_wrong_is_refused(wrong: dict[str, Any], message: str) -> None:
    declared: dict[str, Any] = {"cron": "0 3 * * *", "job": Report()} | wrong
    with pytest.raises(DeclarationError, match=message):
        Schedule(**declared)


# Times


def test_times_are_those_of_the_time_zone() -> None:
    berlin = Schedule("0 3 * * *", Report(), time_zone="Europe/Berlin")
    assert berlin.next(at("2026-01-10T00:00Z")) == at("2026-01-10T02:00Z")
    assert berlin.next(at("2026-07-10T00:00Z")) == at("2026-07-10T01:00Z")
    assert berlin.next(at("2026-07-10T01:00Z")) == at("2026-07-11T01:00Z")


def test_with_six_fields_the_first_is_the_second() -> None:
    assert Schedule("*/20 * * * * *", Report()).next(at("2026-01-01T00:00:20.5Z")) == at("2026-01-01T00:00:40Z")


@pytest.mark.parametrize(
    ("cron", "expected"),
    [
        ("@hourly", ["2026-10-24T23:00+02:00", "2026-10-25T00:00+02:00"]),
        ("@daily", ["2026-10-25T00:00+02:00", "2026-10-26T00:00+01:00"]),
        ("@midnight", ["2026-10-25T00:00+02:00", "2026-10-26T00:00+01:00"]),
        ("@weekly", ["2026-10-25T00:00+02:00", "2026-11-01T00:00+01:00"]),
        ("@monthly", ["2026-11-01T00:00+01:00", "2026-12-01T00:00+01:00"]),
        ("@yearly", ["2027-01-01T00:00+01:00", "2028-01-01T00:00+01:00"]),
        ("@annually", ["2027-01-01T00:00+01:00", "2028-01-01T00:00+01:00"]),
    ],
)
def test_a_name_stands_for_its_times(cron: str, expected: list[str]) -> None:
    found = times(
        Schedule(cron, Report(), time_zone="Europe/Berlin"), "2026-10-24T22:30+02:00", "2028-01-01T00:00+01:00"
    )
    assert found[:2] == expected
    assert next_time(cron, "Europe/Berlin", at("2026-10-24T22:30+02:00")) == at(expected[0])


@pytest.mark.parametrize(
    ("cron", "spring", "autumn"),
    [
        # The hour from 2 to 3 is left out on 29 March, and comes twice on 25 October. What has a time of its own happens
        # once on each day; what happens every so often goes on every so often.
        ("30 2 * * *", ["29T03:00+02:00"], ["25T02:30+02:00"]),
        ("15,45 2 * * *", ["29T03:00+02:00"], ["25T02:15+02:00", "25T02:45+02:00"]),
        (
            "0 * * * *",
            ["29T01:00+01:00", "29T03:00+02:00", "29T04:00+02:00"],
            ["25T01:00+02:00", "25T02:00+02:00", "25T02:00+01:00", "25T03:00+01:00", "25T04:00+01:00"],
        ),
        ("30 */2 * * *", ["29T04:30+02:00"], ["25T02:30+02:00", "25T02:30+01:00", "25T04:30+01:00"]),
        ("0 3 * * *", ["29T03:00+02:00"], ["25T03:00+01:00"]),
    ],
)
def test_when_the_clocks_change_in_berlin(cron: str, spring: list[str], autumn: list[str]) -> None:
    berlin = Schedule(cron, Report(), time_zone="Europe/Berlin")
    assert times(berlin, "2026-03-29T00:59+01:00", "2026-03-29T04:59+02:00") == [f"2026-03-{each}" for each in spring]
    assert times(berlin, "2026-10-25T00:59+02:00", "2026-10-25T04:59+01:00") == [f"2026-10-{each}" for each in autumn]


@pytest.mark.parametrize(
    ("cron", "spring", "autumn"),
    [
        # Half an hour: from 2:00 to 2:30 is left out on 4 October, and from 1:30 to 2:00 comes twice on 5 April.
        ("0 2 * * *", ["04T02:30+11:00"], ["05T02:00+10:30"]),
        ("45 1 * * *", ["04T01:45+10:30"], ["05T01:45+11:00"]),
        ("0 */2 * * *", [], ["05T02:00+10:30"]),
        ("*/20 2 * * *", ["04T02:40+11:00"], ["05T02:00+10:30", "05T02:20+10:30", "05T02:40+10:30"]),
        (
            "*/30 * * * *",
            ["04T01:30+10:30", "04T02:30+11:00", "04T03:00+11:00"],
            ["05T01:30+11:00", "05T01:30+10:30", "05T02:00+10:30", "05T02:30+10:30", "05T03:00+10:30"],
        ),
    ],
)
def test_when_the_clocks_change_by_half_an_hour(cron: str, spring: list[str], autumn: list[str]) -> None:
    island = Schedule(cron, Report(), time_zone="Australia/Lord_Howe")
    assert times(island, "2026-10-04T01:01+10:30", "2026-10-04T03:01+11:00") == [f"2026-10-{each}" for each in spring]
    assert times(island, "2026-04-05T01:01+11:00", "2026-04-05T03:01+10:30") == [f"2026-04-{each}" for each in autumn]


CHANGING = [
    "Australia/Lord_Howe",
    "Europe/Berlin",
    "America/Havana",
    "Africa/Cairo",
    "America/Santiago",
    "Antarctica/Troll",
]
EVERY = [
    "0 * * * *",
    "*/20 * * * *",
    "*/20 0-3 * * *",
    "30 */2 * * *",
    "*/30 2 * * SUN",
    "* 0 * * SUN",
    "0 30 1-3 * * *",
]


@pytest.mark.parametrize("zone", CHANGING)
def test_what_is_done_every_so_often_is_done_whenever_the_clock_says_so(zone: str) -> None:
    """Compared with a look at every minute of the days on which the clocks changed in 2024: a past year stays as it is."""
    hours = [at("2024-01-01T00:00Z") + timedelta(hours=n) for n in range(365 * 24)]
    local = ZoneInfo(zone)
    changes = [
        when for before, when in pairwise(hours)
        if when.astimezone(local).utcoffset() != before.astimezone(local).utcoffset()
    ]  # fmt: skip
    assert len(changes) == 2
    for cron in EVERY:
        schedule = Schedule(cron, Report(), time_zone=zone, missed="all")
        naive = {
            each.replace(tzinfo=None)
            for change in changes
            for each in Schedule(cron, Report(), missed="all")._until(
                change - timedelta(days=2), change + timedelta(days=2)
            )
        }
        for change in changes:
            begin, end = change - timedelta(hours=12), change + timedelta(hours=12)
            minutes = [begin + timedelta(minutes=n) for n in range(1, 1441)]
            wanted = [each for each in minutes if each.astimezone(local).replace(tzinfo=None) in naive]
            found = schedule.due(begin, end)
            assert (found.times if found else ()) == tuple(wanted), (cron, change)


@pytest.mark.parametrize("day", ["2026-03-29", "2026-10-25"])
def test_a_day_on_which_the_clocks_change_has_one_three_oclock_and_as_many_hours_as_it_has(day: str) -> None:
    begin = at(f"{day}T00:00+00:00") - timedelta(hours=2)
    once = Schedule("30 2 * * *", Report(), time_zone="Europe/Berlin", missed="all")
    assert len(once.due(begin, begin + timedelta(hours=24)).times) == 1  # type: ignore[union-attr]
    hourly = Schedule("0 * * * *", Report(), time_zone="Europe/Berlin", missed="all")
    assert len(hourly.due(begin, begin + timedelta(hours=24)).times) == 24  # type: ignore[union-attr]


CRONS = ["30 2 * * *", "15,45 2 * * *", "*/20 * * * *", "0 */2 * * *", "5 1-3 * * *", "0 0 * * SUN", "0 2 L * *"]
ZONES = st.sampled_from(["Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "UTC"])
AROUND = st.sampled_from(
    ["2026-03-29T01:00Z", "2026-10-25T01:00Z", "2026-06-01T00:00Z", "2026-04-04T15:00Z", "2026-10-03T15:30Z"]
)
SECONDS = st.integers(-4 * 86_400, 4 * 86_400)


@settings(deadline=None)
@given(st.sampled_from(CRONS), ZONES, AROUND, SECONDS, SECONDS)
def test_the_times_do_not_depend_on_where_one_begins_to_look(
    cron: str, zone: str, around: str, start: int, now: int
) -> None:
    """Or a worker that looks at another moment would fire other times."""
    every, once = (Schedule(cron, Report(), time_zone=zone, missed=each) for each in ("all", "once"))
    early, last = at(around) - timedelta(days=5), at(around) + timedelta(seconds=start)
    until = at(around) + timedelta(seconds=now)
    known = every.due(early, until)
    after = [each for each in (known.times if known else ()) if each > last]
    found = every.due(last, until)
    assert (found.times if found else ()) == tuple(after)
    assert once.due(last, until) == (Due(after[-1], (after[-1],)) if after else None)


# Missed times


def test_nothing_is_due_before_its_time() -> None:
    for missed in ("once", "skip", "all"):
        schedule = Schedule("0 3 * * *", Report(), missed=missed)
        assert schedule.due(at("2026-01-01T03:00Z"), at("2026-01-02T02:59:59Z")) is None
        assert schedule.due(at("2026-01-01T03:00Z"), at("2026-01-01T03:00Z")) is None
        assert schedule.due(at("2026-01-01T03:00Z"), at("2025-12-01T03:00Z")) is None
        [time] = schedule.due(at("2026-01-01T03:00Z"), at("2026-01-02T03:00Z")).times  # type: ignore[union-attr]
        assert time == at("2026-01-02T03:00Z")


def test_once_is_for_the_newest_of_what_was_missed() -> None:
    newest = at("2026-01-09T03:00Z")
    found = Schedule("0 3 * * *", Report()).due(at("2026-01-01T03:00Z"), at("2026-01-10T02:00Z"))
    assert found == Due(newest, (newest,))


def test_skip_passes_over_what_is_more_than_a_minute_late() -> None:
    schedule, last, time = (
        Schedule("0 3 * * *", Report(), missed="skip"),
        at("2026-01-01T03:00Z"),
        at("2026-01-05T03:00Z"),
    )
    assert schedule.due(last, time + timedelta(seconds=60)) == Due(time, (time,))
    assert schedule.due(last, time + timedelta(seconds=61)) == Due(time, ())


def test_all_is_each_of_them_a_thousand_at_once() -> None:
    schedule, begin = Schedule("* * * * *", Report(), missed="all"), at("2026-01-01T00:00Z")
    now, last = begin + timedelta(minutes=2500, seconds=30), begin
    found: list[datetime] = []
    while (due := schedule.due(last, now)) is not None:
        assert len(due.times) <= MOST_AT_ONCE
        assert due.to == due.times[-1]
        found += due.times
        last = due.to
    assert found == [begin + timedelta(minutes=n) for n in range(1, 2501)]


def test_years_of_seconds_are_not_counted_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    looked = 0
    times = Schedule._times

    def counting(self: Schedule, after: datetime) -> Any:
        nonlocal looked
        for time in times(self, after):
            looked += 1
            yield time

    monkeypatch.setattr(Schedule, "_times", counting)
    now = at("2026-01-01T00:00:00Z")
    assert Schedule("* * * * * *", Report()).due(at("2016-01-01T00:00Z"), now) == Due(now, (now,))
    assert looked < 100
