"""Retry policies: exact waits, exact ends, and every refusal names its field."""

from __future__ import annotations

import contextlib
import dataclasses
import random
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.errors import ConfigError
from outrider.retry import (
    DEFAULT_RETRY_POLICY,
    LONGEST,
    PATIENT_RETRY_POLICY,
    Backoff,
    Policy,
    RetryPolicy,
    parse_duration,
)

HOUR = timedelta(hours=1)


def waits(policy: Policy, chance: float = 0.5) -> list[timedelta]:
    found: list[timedelta] = []
    while (delay := policy.delay(len(found) + 1, chance)) is not None:
        found.append(delay)
    return found


def seconds(*numbers: float) -> list[timedelta]:
    return [timedelta(seconds=number) for number in numbers]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("250ms", timedelta(milliseconds=250)),
        ("30s", timedelta(seconds=30)),
        ("5m", timedelta(minutes=5)),
        ("1h", timedelta(hours=1)),
        ("2d", timedelta(days=2)),
        ("0s", timedelta(0)),
        ("007s", timedelta(seconds=7)),
        ("3650d", LONGEST),
        (0, timedelta(0)),
        (90, timedelta(seconds=90)),
        (0.25, timedelta(milliseconds=250)),
        (timedelta(minutes=3), timedelta(minutes=3)),
    ],
)
def test_a_duration(value: Any, expected: timedelta) -> None:
    assert parse_duration(value) == expected


@pytest.mark.parametrize(
    "value",
    [
        *("", "s", "30", "30 s", " 30s", "30s\n", "-30s", "1.5h", "1h30m", "30S", "30sec", "٣s"),
        *("1" * 16 + "s", "9" * 9000 + "d", None, True, b"30s", ["30s"], float("nan")),
    ],
    ids=lambda value: f"{value!r:.20}",
)
def test_what_is_not_a_duration(value: Any) -> None:
    with pytest.raises(ConfigError, match="is not a duration: write a whole number with its unit"):
        parse_duration(value)


@pytest.mark.parametrize("value", [-1, -0.5, timedelta(microseconds=-1)])
def test_a_negative_duration(value: Any) -> None:
    with pytest.raises(ConfigError, match="is negative: a duration is zero or more"):
        parse_duration(value)


@pytest.mark.parametrize(
    "value",
    [
        *("3651d", "9" * 15 + "d", timedelta.max, LONGEST + timedelta.resolution),
        *(10**12, 10**4000, -(10**4000), 1e300, float("inf"), float("-inf")),
    ],
    ids=lambda value: f"{value!r:.20}",
)
def test_a_duration_that_no_timestamp_can_take(value: Any) -> None:
    with pytest.raises(ConfigError, match=r"a duration is (at most|between zero and) 3,650 days"):
        parse_duration(value)


@settings(deadline=None)
@given(st.one_of(st.text(), st.integers(), st.floats(), st.timedeltas(), st.none(), st.binary()))
def test_a_duration_is_parsed_or_refused(value: Any) -> None:
    with contextlib.suppress(ConfigError):
        assert timedelta(0) <= parse_duration(value) <= LONGEST


def test_the_default_policy() -> None:
    assert waits(DEFAULT_RETRY_POLICY, 0.5) == seconds(0.5, 1, 2, 4, 8)
    assert waits(DEFAULT_RETRY_POLICY, 0.0) == seconds(0, 0, 0, 0, 0)
    assert RetryPolicy(base="1s", cap="5m") == RetryPolicy() == DEFAULT_RETRY_POLICY


def test_the_patient_policy_covers_a_day() -> None:
    assert waits(PATIENT_RETRY_POLICY, 0.5)[-1] == timedelta(minutes=30)
    assert 24 * HOUR < sum(waits(PATIENT_RETRY_POLICY, 0.5), timedelta(0)) < 25 * HOUR
    assert sum(waits(PATIENT_RETRY_POLICY, 1.0), timedelta(0)) < 49 * HOUR
    dice = random.Random(1)
    for _ in range(500):
        delays = [PATIENT_RETRY_POLICY.delay(attempt, dice.random()) or timedelta(0) for attempt in range(1, 57)]
        assert 16 * HOUR < sum(delays, timedelta(0)) < 32 * HOUR


@pytest.mark.parametrize("policy", [RetryPolicy(retries=0), Backoff.table()])
def test_a_policy_without_retries(policy: Policy) -> None:
    assert policy.delay(1, 0.5) is None


def test_a_table() -> None:
    table = Backoff.table("30s", timedelta(minutes=5), 7)
    assert waits(table, 0.0) == waits(table, 0.9) == seconds(30, 300, 7)
    assert table == Backoff.table(30, "5m", "7s")


def test_without_jitter_chance_does_not_matter() -> None:
    policy = RetryPolicy(retries=4, base="10s", factor=3, cap="1m", jitter="none")
    assert waits(policy, 0.0) == waits(policy, 0.9) == seconds(10, 30, 60, 60)


@pytest.mark.parametrize("factor", [1.001, 2, 1000.0])
def test_ten_thousand_attempts_do_not_overflow(factor: float) -> None:
    policy = RetryPolicy(retries=10_000, factor=factor, jitter="none")
    assert policy.delay(10_000, 0.5) == timedelta(minutes=5)
    assert policy.delay(10_001, 0.5) is None


def test_a_base_of_zero_stays_zero() -> None:
    policy = RetryPolicy(retries=10_000, base=0)
    assert policy.delay(1, 0.9) == policy.delay(10_000, 0.9) == timedelta(0)


@settings(deadline=None)
@given(
    retries=st.integers(0, 20_000),
    base=st.floats(0, 100),
    factor=st.floats(1, 1000),
    more=st.floats(0, 1e6),
    attempt=st.integers(1, 20_000),
    chance=st.floats(0, 1, exclude_max=True),
)
def test_a_delay_stays_in_its_bounds(
    retries: int, base: float, factor: float, more: float, attempt: int, chance: float
) -> None:
    policy = RetryPolicy(retries=retries, base=base, factor=factor, cap=base + more)
    exact = dataclasses.replace(policy, jitter="none")
    jittered, longest = policy.delay(attempt, chance), exact.delay(attempt, chance)
    if attempt > retries:
        assert jittered is longest is None
    else:
        assert jittered is not None
        assert longest is not None
        assert timedelta(0) <= jittered <= longest <= parse_duration(policy.cap)
        assert longest >= parse_duration(policy.base)
        assert abs(longest * chance - jittered) <= timedelta.resolution


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"retries": -1}, "retries: -1 is not a whole number between 0 and"),
        ({"retries": True}, "retries: True is not a whole number"),
        ({"retries": 2.0}, "retries: 2.0 is not a whole number"),
        ({"retries": 2**31 - 1}, "retries: 2147483647 is not a whole number"),
        ({"base": "soon"}, "base: 'soon' is not a duration"),
        ({"base": -1}, "base: -1 is negative"),
        ({"cap": "4000d"}, "cap: '4000d' is too long"),
        ({"base": "10s", "cap": "1s"}, "cap: 0:00:01 is shorter than base, 0:00:10"),
        ({"factor": 0.5}, "factor: 0.5 is not a number between 1 and 1,000"),
        ({"factor": float("nan")}, "factor: nan is not a number"),
        ({"factor": float("inf")}, "factor: inf is not a number"),
        ({"factor": "2"}, "factor: '2' is not a number"),
        ({"jitter": "some"}, "jitter: 'some' is neither 'full' nor 'none'"),
    ],
)
def test_a_wrong_policy_names_the_field(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        RetryPolicy(**arguments)


def test_a_wrong_table_names_the_entry() -> None:
    with pytest.raises(ConfigError, match=r"delays\[1\]: 'soon' is not a duration"):
        Backoff.table("30s", "soon")
    with pytest.raises(ConfigError, match=r"delays: '30s' is not a tuple: write Backoff\.table"):
        Backoff("30s")  # type: ignore[arg-type]


@pytest.mark.parametrize("policy", [RetryPolicy(), Backoff.table("1s")])
def test_attempts_count_from_one(policy: Policy) -> None:
    with pytest.raises(ValueError, match="attempt is 0: attempts count from 1"):
        policy.delay(0, 0.5)


@pytest.mark.parametrize("policy", [RetryPolicy(), Backoff.table("1s")])
def test_policies_are_values(policy: Any) -> None:
    assert hash(policy) == hash(dataclasses.replace(policy))
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(policy, dataclasses.fields(policy)[0].name, 1)
