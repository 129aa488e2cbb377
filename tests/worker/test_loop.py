"""A loop takes steps, sleeps between them, and hears every wake-up that concerns it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from itertools import count

import pytest

from outrider.errors import DatabaseUnavailable
from outrider.signals import Recovered, Signal, Signals, Troubled, Woken
from outrider.worker.loop import Loop
from outrider.worker.loops import Loops
from outrider.worker.wakeups import Polling

WANTS: dict[str, Collection[str] | None] = {
    "mailer": frozenset({"orders.placed", "orders.paid"}),
    "ledger": frozenset({"orders.paid"}),
    "archive": None,
    "upkeep": (),
}
NEVER = 3600.0


class Sleeper(Loop):
    """Its steps do nothing but fail as often as they are told to."""

    def __init__(self, name: str = "ledger", types: Collection[str] | None = None, fails: int = 0) -> None:
        self.told: list[Signal] = []
        signals = Signals()
        signals.listen(self.told.append)
        super().__init__(name, signals, types=types)
        self.steps, self.fails, self.pause, self.deaf = 0, fails, NEVER, False
        self.stepped = asyncio.Condition()

    async def step(self) -> float:
        async with self.stepped:
            self.steps += 1
            self.stepped.notify_all()
        if self.steps <= self.fails:
            raise DatabaseUnavailable("away")
        return self.pause

    @property
    def patient(self) -> bool:
        return self.deaf

    async def until(self, steps: int) -> None:
        async with asyncio.timeout(60), self.stepped:
            await self.stepped.wait_for(lambda: self.steps >= steps)
        for _ in range(3):  # it is asleep again, or has told what there was to tell
            await asyncio.sleep(0)

    def reasons(self) -> list[str]:
        return [each.reason for each in self.told if isinstance(each, Woken)]


@asynccontextmanager
async def running(loop: Sleeper) -> AsyncIterator[Sleeper]:
    task = loop.start(lambda _: None)
    try:
        await loop.until(1)
        yield loop
    finally:
        loop.stop()
        await asyncio.wait_for(task, 60)


@pytest.mark.parametrize(
    ("kind", "woken"),
    [
        ("orders.placed", {"mailer", "archive"}),
        ("orders.paid", {"mailer", "ledger", "archive"}),
        ("orders.unknown", {"archive"}),
        ("orders.place", {"archive"}),
        ("", {"archive"}),
        ("mailer", {"archive"}),
    ],
)
async def test_a_notification_wakes_those_who_want_its_type(kind: str, woken: set[str]) -> None:
    loops = Loops([Sleeper(name, types) for name, types in WANTS.items()], (), lambda _: None)
    loops.wake(kind, 0)
    assert {loop.name for loop in loops if loop.wakes} == woken


async def test_a_wake_during_the_sleep_ends_it() -> None:
    async with running(Sleeper()) as loop:
        loop.wake("notification")
        await loop.until(2)
    assert loop.reasons() == ["notification"]


async def test_a_wake_before_the_sleep_is_kept_and_given_once() -> None:
    loop = Sleeper()
    loop.wake("notification")
    loop.wake("listener")
    async with running(loop):
        await loop.until(2)
    assert loop.steps == 2
    assert loop.reasons() == ["listener"], "the latest reason"


async def test_without_a_wake_it_polls() -> None:
    loop = Sleeper()
    loop.pause = 0.001
    async with running(loop):
        await loop.until(4)
    assert set(loop.reasons()) == {"poll"}


async def test_no_pause_is_no_sleep() -> None:
    loop, pauses = Sleeper(), count()
    loop.step = lambda: _turn(loop, next(pauses))  # type: ignore[method-assign]
    async with asyncio.timeout(60):
        await loop.run()
    assert loop.told == []


async def _turn(loop: Sleeper, turn: int) -> float:
    loop.steps += 1
    if turn == 3:
        loop.stop()
    return 0


async def test_a_stop_ends_the_sleep_and_is_no_wake() -> None:
    async with running(Sleeper()) as loop:
        pass
    assert (loop.steps, loop.reasons()) == (1, [])


async def test_a_loop_that_nothing_concerns_is_not_woken() -> None:
    async with running(Sleeper(types=())) as loop:
        loop.wake("listener")
        await loop.until(1)
    assert (loop.steps, loop.reasons()) == (1, [])


async def test_a_patient_loop_sleeps_through_wakes() -> None:
    loop = Sleeper()
    loop.deaf = True
    async with running(loop):
        loop.wake("notification")
        await loop.until(1)
    assert (loop.steps, loop.reasons()) == (1, [])


async def test_infrastructure_failures_are_counted_and_said_to_be_over() -> None:
    loop = Sleeper(types=(), fails=3)
    async with running(loop):
        await loop.until(4)
    assert [each.in_a_row for each in loop.told if isinstance(each, Troubled)] == [1, 2, 3]
    assert [each for each in loop.told if isinstance(each, Recovered)] == [Recovered("ledger", 3)]
    assert loop.trouble == 0


async def test_an_error_of_another_kind_ends_it() -> None:
    ended: list[BaseException | None] = []
    loop = Sleeper()
    loop.step = lambda: _fail()  # type: ignore[method-assign]
    loops = Loops([loop], (), ended.append)
    loops.start_all()
    await asyncio.wait(loops.tasks())
    await asyncio.sleep(0)
    [error] = ended
    assert isinstance(error, ZeroDivisionError)
    assert list(loops) == []


async def _fail() -> float:
    raise ZeroDivisionError


async def test_ready_when_every_loop_has_looked_once() -> None:
    some = [Sleeper("a", ()), Sleeper("b", ())]
    loops = Loops(some, ["a handler", "another"], lambda _: None)
    loops.start_all()
    for loop in some:
        await loop.until(1)
    loops.expect_no_more(["another"])
    assert not loops.ready.is_set()
    loops.add(Sleeper("a handler", ()))
    await asyncio.wait_for(loops.ready.wait(), 60)
    assert await loops.finish(10, asyncio.Event())


@pytest.mark.parametrize(("listener_up", "interval"), [(True, 30.0), (False, 5.0)])
def test_the_interval_is_spread_downward(listener_up: bool, interval: float) -> None:
    drawn = [Polling().next(listener_up, None) for _ in range(500)]
    assert interval * 0.9 <= min(drawn) < interval * 0.93
    assert interval * 0.97 < max(drawn) <= interval


def test_what_is_due_earlier_shortens_it() -> None:
    polling = Polling(listening=20, blind=2)
    assert polling.next(True, 1.5) == 1.5
    assert polling.next(False, 1.5) == 1.5
    assert polling.next(True, -3) == 0
    assert 18 <= polling.next(True, 60) <= 20
    assert 1.8 <= polling.next(False, 60) <= 2
