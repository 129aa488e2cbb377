"""Suspects run alone; everybody else waits, and goes on afterwards."""

from __future__ import annotations

import asyncio

from outrider.worker.isolation import Isolation


async def test_who_wants_to_be_alone_waits_for_those_at_work_and_keeps_the_others_out() -> None:
    quarantine, told = Isolation(), list[str]()
    first_may_end, alone_may_end = asyncio.Event(), asyncio.Event()

    async def beside(name: str, may_end: asyncio.Event) -> None:
        async with quarantine.beside_others():
            told.append(f"{name} begins")
            await may_end.wait()
            told.append(f"{name} ends")

    async def alone() -> None:
        async with quarantine.alone():
            told.append("alone begins")
            await alone_may_end.wait()
            told.append("alone ends")

    async def settled() -> None:
        for _ in range(20):
            await asyncio.sleep(0)

    open_door = asyncio.Event()
    open_door.set()
    async with asyncio.TaskGroup() as group:
        group.create_task(beside("first", first_may_end))
        await settled()
        group.create_task(alone())
        await settled()
        group.create_task(beside("second", open_door))
        await settled()
        assert told == ["first begins"]
        first_may_end.set()
        await settled()
        assert told == ["first begins", "first ends", "alone begins"]
        alone_may_end.set()
    assert told[3:] == ["alone ends", "second begins", "second ends"]


async def test_one_that_is_cancelled_while_it_waits_does_no_harm() -> None:
    quarantine = Isolation()
    async with quarantine.beside_others():

        async def alone() -> None:
            async with quarantine.alone():
                raise AssertionError("not while another is at work")

        task = asyncio.create_task(alone())
        for _ in range(10):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    async with quarantine.alone():
        pass
    async with quarantine.beside_others():
        pass
