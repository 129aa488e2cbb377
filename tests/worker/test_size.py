"""Batches are sized by what handling them costs."""

from __future__ import annotations

from outrider.worker.batch_size import FIRST, Size


def test_it_doubles_while_batches_are_quick() -> None:
    size = Size(limit=100, budget=0.25)
    assert size.now == FIRST
    seen = []
    for _ in range(4):
        size.learn(size.now, 0.01)
        seen.append(size.now)
    assert seen == [32, 64, 100, 100]


def test_it_stays_while_the_budget_is_well_used() -> None:
    size = Size(limit=100, budget=0.25)
    size.learn(16, 0.2)
    assert size.now == 16


def test_a_batch_that_was_not_full_says_little() -> None:
    size = Size(limit=100, budget=0.25)
    size.learn(3, 0.001)
    assert size.now == 16


def test_it_shrinks_to_what_fits_into_the_budget() -> None:
    size = Size(limit=1000, budget=0.25)
    size.learn(16, 1.0)
    assert size.now == 4
    size.learn(4, 30.0)
    assert size.now == 1


def test_after_a_failure_less_is_risked() -> None:
    size = Size(limit=1000, budget=0.25)
    for _ in range(6):
        size.learn(size.now, 0.001)
    assert size.now == 1000
    size.shrink()
    assert size.now == 500
    for _ in range(10):
        size.shrink()
    assert size.now == FIRST
    assert Size(limit=1, budget=0.25).now == 1
