"""Ids: version 7, in order within a process whatever the clock does, and close to now."""

from __future__ import annotations

import threading
import time
from itertools import pairwise
from uuid import RFC_4122, UUID

import pytest

from outrider import ids
from outrider.ids import uuid7


def milliseconds(of: UUID) -> int:
    return of.int >> 80


def test_version_and_variant() -> None:
    for made in (uuid7() for _ in range(10_000)):
        assert (made.version, made.variant) == (7, RFC_4122)
        assert UUID(str(made)) == made


@pytest.mark.verify
def test_strictly_increasing_in_a_burst_as_numbers_as_text_and_as_bytes() -> None:
    burst = [uuid7() for _ in range(100_000)]
    assert all(a < b and str(a) < str(b) and a.bytes < b.bytes for a, b in pairwise(burst))


def test_the_time_is_now() -> None:
    before = time.time_ns() // 1_000_000
    made = uuid7()
    after = time.time_ns() // 1_000_000
    assert before <= milliseconds(made) <= after + 1


def test_a_clock_that_goes_back_does_not_undo_the_order(monkeypatch: pytest.MonkeyPatch) -> None:
    before = uuid7()
    monkeypatch.setattr(time, "time_ns", lambda: 1_000_000_000_000_000_000)
    back = [uuid7() for _ in range(100)]
    assert all(a < b for a, b in pairwise([before, *back]))


def test_a_clock_that_stands_still_borrows_from_the_next_millisecond(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ids, "_last", 0)
    now = time.time_ns()
    monkeypatch.setattr(time, "time_ns", lambda: now)
    first = uuid7()
    monkeypatch.setattr(ids, "_last", ((now // 1_000_000) << 26) | 0x3FF_FFFF)
    overflown = uuid7()
    assert milliseconds(overflown) == milliseconds(first) + 1
    assert (overflown.version, overflown.variant) == (7, RFC_4122)
    assert overflown > first


def test_increasing_within_each_thread_and_distinct_across_them() -> None:
    made: list[list[UUID]] = [[] for _ in range(8)]
    start = threading.Barrier(8)

    def make(mine: list[UUID]) -> None:
        start.wait()
        mine += [uuid7() for _ in range(5_000)]

    threads = [threading.Thread(target=make, args=[mine]) for mine in made]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(a < b for mine in made for a, b in pairwise(mine))
    assert len({one for mine in made for one in mine}) == 40_000
