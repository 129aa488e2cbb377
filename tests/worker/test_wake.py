"""Wake-ups reach exactly those who want them, and none is lost between a take and the wait."""

from __future__ import annotations

import asyncio

import pytest

from outrider.worker.wakeups import Polling, Wakes

WANTS = {
    "mailer": frozenset({"orders.placed", "orders.paid"}),
    "ledger": frozenset({"orders.paid"}),
    "archive": None,
}


class Woken(list[tuple[str, str]]):
    def __call__(self, name: str, reason: str) -> None:
        self.append((name, reason))


async def waits(wakes: Wakes) -> dict[str, str]:
    return {name: await wakes.wait(name, 0) for name in WANTS}


async def soon(wakes: Wakes, name: str, waiter: int | None = None) -> str:
    async with asyncio.timeout(10):
        return await wakes.wait(name, None, waiter)


@pytest.mark.parametrize(
    ("event_type", "woken"),
    [
        ("orders.placed", {"mailer", "archive"}),
        ("orders.paid", {"mailer", "ledger", "archive"}),
        ("orders.unknown", {"archive"}),
        ("", {"archive"}),
        ("mailer", {"archive"}),
    ],
)
async def test_a_poke_wakes_those_who_want_its_type(event_type: str, woken: set[str]) -> None:
    wakes = Wakes(WANTS, Woken())
    wakes.poke(event_type)
    assert await waits(wakes) == {name: "poke" if name in woken else "poll" for name in WANTS}


async def test_an_unknown_type_wakes_nobody_who_chose_his_types() -> None:
    wakes = Wakes({"mailer": frozenset({"orders.placed"})}, Woken())
    wakes.poke("orders.place")
    assert await wakes.wait("mailer", 0) == "poll"


async def test_a_poke_wakes_the_readers_of_its_generation() -> None:
    """Generation 1 has cursors of its own at the ledger and not at the archive, where 0 finds its events."""
    wakes = Wakes(WANTS, Woken(), generation=2, route=lambda name, of: of if name == "ledger" or of == 2 else 0)
    for name, of in (("ledger", 0), ("ledger", 1), ("archive", 0), ("mailer", 1)):
        wakes.expect(name, of)
    wakes.poke("orders.paid", 1)
    woken = {
        (name, of): await wakes.wait(name, 0, None, of)
        for name, of in (("ledger", 0), ("ledger", 1), ("ledger", 2), ("archive", 0), ("archive", 2), ("mailer", 1))
    }
    assert [place for place, reason in woken.items() if reason == "poke"] == [("ledger", 1), ("archive", 0)]
    wakes.poke("orders.paid", 2)
    assert await wakes.wait("ledger", 0, None, 2) == "poke"
    assert await wakes.wait("ledger", 0, None, 1) == "poll"


async def test_a_wake_after_expect_and_before_the_first_wait_is_kept() -> None:
    wakes = Wakes(WANTS, Woken())
    wakes.expect("ledger", 7)
    wakes.wake_all("listener")
    wakes.expect("ledger", 7)
    assert await wakes.wait("ledger", 0, None, 7) == "listener"


async def test_a_wake_before_the_wait_is_kept_and_given_once() -> None:
    wakes = Wakes(WANTS, Woken())
    wakes.poke("orders.paid")
    wakes.poke("orders.paid")
    assert await soon(wakes, "ledger") == "poke"
    assert await wakes.wait("ledger", 0) == "poll"


async def test_a_wake_ends_the_waits_of_all_who_wait() -> None:
    wakes = Wakes(WANTS, Woken())
    waiting = [asyncio.create_task(soon(wakes, "ledger", waiter)) for waiter in (None, None, 1, 2)]
    asyncio.get_running_loop().call_soon(wakes.poke, "orders.paid")
    assert await asyncio.gather(*waiting) == ["poke"] * 4


async def test_a_busy_task_finds_the_wake_that_another_has_answered() -> None:
    wakes = Wakes(WANTS, Woken())
    wakes.poke("orders.paid")
    assert await soon(wakes, "ledger", 0) == "poke"
    assert await soon(wakes, "ledger", 1) == "poke"
    assert await wakes.wait("ledger", 0, 0) == "poll"
    assert await wakes.wait("ledger", 0, 1) == "poll"


async def test_everyone_is_woken_for_the_latest_reason() -> None:
    wakes = Wakes(WANTS, Woken())
    wakes.wake_all("start")
    assert await waits(wakes) == dict.fromkeys(WANTS, "start")
    wakes.poke("orders.paid")
    wakes.wake_all("listener")
    assert await waits(wakes) == dict.fromkeys(WANTS, "listener")


async def test_a_wake_during_the_wait_beats_the_timeout() -> None:
    wakes = Wakes(WANTS, Woken())
    asyncio.get_running_loop().call_soon(wakes.poke, "orders.paid")
    assert await wakes.wait("ledger", 10) == "poke"


async def test_stop_ends_every_wait_from_then_on() -> None:
    woken = Woken()
    wakes = Wakes(WANTS, woken)
    waiting = [asyncio.create_task(soon(wakes, name)) for name in WANTS]
    asyncio.get_running_loop().call_soon(wakes.stop)
    assert await asyncio.gather(*waiting) == ["stop"] * 3
    wakes.poke("orders.paid")
    for _ in range(2):
        assert await soon(wakes, "ledger") == "stop"
        assert await soon(wakes, "ledger", 5) == "stop"
    assert woken == []


async def test_the_ends_of_waits_are_told_with_their_reasons() -> None:
    woken = Woken()
    wakes = Wakes(WANTS, woken)
    wakes.poke("orders.placed")
    assert woken == []
    await waits(wakes)
    assert woken == [("mailer", "poke"), ("ledger", "poll"), ("archive", "poke")]


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
