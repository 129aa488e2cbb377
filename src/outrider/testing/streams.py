"""The stream exercise: what every broker's adapter must do. An adapter implements `StreamHarness` and runs `CHECKS`.

    @pytest.mark.parametrize("check", streams.CHECKS.values(), ids=streams.CHECKS)
    async def test_my_broker(check, harness):
        await check(harness)

or, one after the other, `await streams.run(harness)`. Every check uses streams of its own, with fresh names, and needs the
real server: three of them restart it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from itertools import pairwise

from outrider.envelope import Envelope
from outrider.streams.codecs import EnvelopeCodec
from outrider.streams.stream import Appended, Moved, Rejected, StreamEntry, bare_position, named_position
from outrider.testing.cases import TEXTS
from outrider.testing.harness import (
    PATIENCE,
    Picky,
    StreamHarness,
    again,
    appended,
    events,
    reads,
    same,
    same_events,
    sink_of,
    source_of,
    tail_of,
)


async def begins_empty(harness: StreamHarness) -> None:
    async with sink_of(harness) as (sink, stream):
        assert sink.stream_of(events(1)[0]) == stream, "the events of this sink go elsewhere"
        assert await sink.end(stream) == sink.start, "an empty stream ends at the start"
        assert await tail_of(sink, stream, sink.start) == [], "an empty stream has entries"
        await sink.open()
        await sink.close()
        await sink.close()
        assert await sink.end(stream) == sink.start, "a sink that was closed opens again when it is used"


async def keeps_the_order(harness: StreamHarness) -> None:
    async with sink_of(harness) as (sink, stream):
        given = events(9)
        at = sink.start
        for n in range(0, 9, 3):
            at = appended(await sink.append(stream, given[n : n + 3], at))
            assert await sink.end(stream) == at, "the stream must end at the position of the last event"
        entries = await tail_of(sink, stream, sink.start)
        same(entries, given)
        keys = [sink.sort_key(entry.position) for entry in entries]
        assert all(a < b for a, b in pairwise([sink.sort_key(sink.start), *keys])), (
            "later entries have greater sort keys"
        )
        assert entries[-1].position == at, "append and tail call the same entry by different positions"


async def appends_only_to_the_end(harness: StreamHarness) -> None:
    async with sink_of(harness) as (sink, stream):
        first, second = events(3), events(3)
        early = appended(await sink.append(stream, first[:1], sink.start))
        end = appended(await sink.append(stream, first[1:], early))
        for wrong in (sink.start, early):
            assert await sink.append(stream, second, wrong) == Moved(end), f"appended after {wrong}, not at {end}"
        same(await tail_of(sink, stream, sink.start), first)


async def appends_once_what_is_sent_again(harness: StreamHarness) -> None:
    """As after an answer that was lost: the tail says what arrived."""
    async with sink_of(harness) as (sink, stream):
        given = events(5)
        before = appended(await sink.append(stream, events(1), sink.start))
        end = appended(await sink.append(stream, given, before))
        assert await sink.append(stream, given, before) == Moved(end), "the same events were appended twice"
        same(await tail_of(sink, stream, before), given)


async def shows_the_tail_after_a_position(harness: StreamHarness) -> None:
    async with sink_of(harness) as (sink, stream):
        given = events(1200)
        at = sink.start
        for n in range(0, 1200, 400):
            at = appended(await sink.append(stream, given[n : n + 400], at))
        entries = await tail_of(sink, stream, sink.start)
        same(entries, given)
        same(await tail_of(sink, stream, entries[6].position), given[7:])
        assert await tail_of(sink, stream, at) == [], "there is nothing after the end"


async def takes_a_batch_of_500(harness: StreamHarness) -> None:
    async with sink_of(harness) as (sink, stream):
        given = events(500)
        appended(await sink.append(stream, given, sink.start))
        same(await tail_of(sink, stream, sink.start), given)


async def takes_payloads_of_200_kib(harness: StreamHarness) -> None:
    async with sink_of(harness) as (sink, stream):
        given = events(100, text="x" * 200 * 1024)
        end = appended(await sink.append(stream, given, sink.start))
        assert await sink.end(stream) == end
        await reads(harness, sink, stream, given)


async def takes_every_text(harness: StreamHarness) -> None:
    async with sink_of(harness) as (sink, stream):
        given = [event for text in TEXTS for event in events(1, text=text, key=text[:80] or None)]
        appended(await sink.append(stream, given, sink.start))
        await reads(harness, sink, stream, given)


async def stops_at_one_that_it_refuses(harness: StreamHarness) -> None:
    async with sink_of(harness, Picky()) as (sink, stream):
        given = [*events(3), *events(1, key="refused"), *events(3)]
        outcome = await sink.append(stream, given, sink.start)
        assert isinstance(outcome, Rejected), f"the codec refused one, and the outcome is {outcome}"
        assert outcome.index == 3, f"the fourth was refused, not number {outcome.index + 1}"
        assert "cannot be written" in outcome.message, f"the reason is not told: {outcome.message}"
        assert outcome.position == await sink.end(stream), "the position is not that of the last one in the stream"
        same(await tail_of(sink, stream, sink.start), given[:3])
        again = await sink.append(stream, given[3:], outcome.position)
        assert isinstance(again, Rejected), f"the outcome is {again}"
        assert (again.index, again.position) == (0, outcome.position), "nothing of the second attempt is in the stream"
        appended(await sink.append(stream, given[4:], outcome.position))
        same(await tail_of(sink, stream, sink.start), given[:3] + given[4:])


async def keeps_streams_apart(harness: StreamHarness) -> None:
    async with sink_of(harness) as (one, first), sink_of(harness) as (two, second):
        ours, theirs = events(3), events(4)
        at = appended(await one.append(first, ours[:2], one.start))
        end = appended(await two.append(second, theirs, two.start))
        appended(await one.append(first, ours[2:], at))
        assert await two.end(second) == end, "an append to one stream moved another"
        same(await tail_of(one, first, one.start), ours)
        same(await tail_of(two, second, two.start), theirs)


async def refuses_a_late_append(harness: StreamHarness) -> None:
    """A zombie: it read the end, slept, and sends when another one has gone on."""
    async with sink_of(harness) as (sink, stream):
        zombie = harness.sink(stream, EnvelopeCodec())
        shared = events(4)
        at = appended(await sink.append(stream, shared[:1], sink.start))
        try:
            assert await zombie.end(stream) == at
            end = appended(await sink.append(stream, shared[1:], at))
            for late in (shared[1:], events(500)):
                assert await zombie.append(stream, late, at) == Moved(end), "a zombie's events got in"
            same(await tail_of(sink, stream, sink.start), shared)
        finally:
            await zombie.close()


async def lets_one_of_two_writers_win(harness: StreamHarness) -> None:
    """At the same time, from the same position: what gets in is one's whole batch, nothing of the other's."""
    async with sink_of(harness) as (sink, stream):
        other = harness.sink(stream, EnvelopeCodec())
        try:
            at, written = sink.start, list[Envelope]()
            for _ in range(20):
                mine, theirs = events(60), events(60)
                outcomes = await asyncio.gather(
                    sink.append(stream, mine, at), other.append(stream, theirs, at), return_exceptions=True
                )
                winners = [n for n, outcome in enumerate(outcomes) if isinstance(outcome, Appended)]
                assert len(winners) == 1, f"two wrote from the same position: {outcomes}"
                written += (mine, theirs)[winners[0]]
                at = await sink.end(stream)
            same(await tail_of(sink, stream, sink.start), written)
        finally:
            await other.close()


async def writes_once_what_two_send(harness: StreamHarness) -> None:
    """The same events at the same time, as of a zombie and its successor: each of them once, in their order."""
    async with sink_of(harness) as (sink, stream):
        other = harness.sink(stream, EnvelopeCodec())
        try:
            at, written = sink.start, list[Envelope]()
            for _ in range(20):
                given = events(60)
                await asyncio.gather(sink.append(stream, given, at), other.append(stream, given, at))
                entries = await tail_of(sink, stream, at)
                ids = [entry.id for entry in entries]
                assert ids == [event.id for event in given[: len(ids)]], "not a beginning of what both sent"
                at = await sink.end(stream)
                if len(ids) < len(given):
                    at = appended(await sink.append(stream, given[len(ids) :], at))
                written += given
            same(await tail_of(sink, stream, sink.start), written)
        finally:
            await other.close()


async def reads_in_pages(harness: StreamHarness) -> None:
    async with sink_of(harness) as (sink, stream), source_of(harness, stream) as source:
        given = events(25)
        appended(await sink.append(stream, given, sink.start))
        entries, position = list[StreamEntry](), source.start
        while (page := await source.read(position, 10, 0)).entries:
            assert len(page.entries) <= 10, "a page has more entries than were asked for"
            assert not page.rewound, "this is the stream that the position is of"
            assert page.position == page.entries[-1].position, "the page ends at another position than its last entry"
            entries += page.entries
            position = page.position
        same_events(source, entries, given)
        async with source_of(harness, stream) as another:
            resumed = await another.read(entries[9].position, 100, 0)
        same_events(source, resumed.entries, given[10:])
        anew = await source.read(source.start, 100, 0)
        same_events(source, anew.entries, given)


async def waits_for_the_next(harness: StreamHarness) -> None:
    async with sink_of(harness) as (sink, stream), source_of(harness, stream) as source:
        empty = await source.read(source.start, 10, 0.05)
        assert not empty.entries, "there is nothing to read"
        assert not empty.rewound, "an empty stream has not been rewound"
        given = events(4)
        at, position = sink.start, empty.position
        for n in range(0, 4, 2):
            reading = asyncio.create_task(source.read(position, 10, PATIENCE))
            await asyncio.sleep(0)
            at = appended(await sink.append(stream, given[n : n + 2], at))
            page = await reading
            assert page.entries, "a read that may wait came back without an entry"
            entries, position = [*page.entries], page.position
            while len(entries) < 2:
                page = await source.read(position, 10, PATIENCE)
                entries, position = [*entries, *page.entries], page.position
            same_events(source, entries, given[n : n + 2])


async def goes_on_after_a_restart(harness: StreamHarness) -> None:
    async with sink_of(harness) as (sink, stream), source_of(harness, stream) as source:
        given = events(6)
        at = appended(await sink.append(stream, given[:3], sink.start))
        page = await source.read(source.start, 2, 1)
        await harness.restart()
        assert await again(lambda: sink.end(stream)) == at, "the broker lost what it had acknowledged"
        appended(await sink.append(stream, given[3:], at))
        same(await tail_of(sink, stream, sink.start), given)
        rest = await again(lambda: source.read(page.position, 10, 1))
        assert not rest.rewound, "a restart makes no other stream"
        same_events(source, [*page.entries, *rest.entries], given)


async def notices_a_lost_tail(harness: StreamHarness) -> None:
    """As of a broker that came back empty: positions of before are of another stream.

    A source need not say so where the new entries come after its position anyway; it must not miss any.
    """
    async with sink_of(harness) as (sink, stream), source_of(harness, stream) as source:
        given = events(6)
        old = appended(await sink.append(stream, given[:4], sink.start))
        page = await source.read(source.start, 10, 1)
        assert len(page.entries) == 4
        await harness.restart(empty=True)
        await harness.make(stream)
        assert await again(lambda: sink.end(stream)) == sink.start, "what is empty ends at its start"
        assert await sink.append(stream, given[4:], old) == Moved(sink.start), "appended as if nothing was lost"
        appended(await sink.append(stream, given[:2], sink.start))
        anew = await again(lambda: source.read(page.position, 10, 1))
        same_events(source, anew.entries, given[:2])
        appended(await sink.append(stream, given[2:4], await sink.end(stream)))
        more = await source.read(anew.position, 10, 1)
        assert not more.rewound, "rewound once is enough"
        keys = [source.sort_key(entry.position) for entry in (*anew.entries, *more.entries)]
        assert keys == sorted(keys), "later entries of a source have greater sort keys"
        same_events(source, more.entries, given[2:4])


async def knows_what_it_holds(harness: StreamHarness) -> None:
    """A place in a stream is not enough: a stream that lost its entries may have others there, or beyond."""
    async with sink_of(harness) as (sink, stream):
        given, others = events(4), events(5)
        early = named_position(appended(await sink.append(stream, given[:2], sink.start)), given[1].id)
        end = named_position(appended(await sink.append(stream, given[2:], early)), given[3].id)
        for position in (sink.start, early, bare_position(early), end):
            assert await sink.holds(stream, position), f"{position} is in the stream"
        assert not await sink.holds(stream, named_position(bare_position(early), others[0].id)), (
            "another event is there"
        )
        await harness.trim(stream, 1)
        for position in (early, end):
            assert await sink.holds(stream, position), f"{position} was in the stream until it was trimmed"
        await harness.restart(empty=True)
        await harness.make(stream)
        assert not await again(lambda: sink.holds(stream, end)), "nothing is in the stream"
        assert await sink.holds(stream, sink.start), "every stream has a start"
        at = appended(await sink.append(stream, others[:4], sink.start))
        for position in (early, end):
            assert not await sink.holds(stream, position), f"{position} is of the stream that was lost"
        assert await sink.holds(stream, named_position(at, others[3].id)), "this one is there"


async def tells_what_was_trimmed(harness: StreamHarness) -> None:
    """What was removed before it was read is missed: neither sink nor source may take the rest for everything."""
    async with sink_of(harness) as (sink, stream), source_of(harness, stream) as source:
        given = events(10)
        assert await sink.complete(stream, sink.start), "an empty stream has lost nothing"
        end = appended(await sink.append(stream, given, sink.start))
        entries = await tail_of(sink, stream, sink.start)
        page = await source.read(source.start, 3, 1)
        assert not page.trimmed, "nothing was removed"
        for position in (sink.start, entries[2].position, end):
            assert await sink.complete(stream, position), f"everything after {position} is there"
        await harness.trim(stream, 4)
        for position in (sink.start, entries[2].position, entries[4].position):
            assert not await sink.complete(stream, position), f"not everything after {position} is there"
        for position in (entries[6].position, end):
            assert await sink.complete(stream, position), f"everything after {position} is there"
        rest = await source.read(page.position, 2, 1)
        assert rest.trimmed, "three entries were passed over without a word"
        assert not rest.rewound, "it is the same stream"
        same_events(source, rest.entries, given[6:8])
        more = await source.read(rest.position, 10, 1)
        assert not more.trimmed, "said once is enough"
        same_events(source, more.entries, given[8:])


async def goes_on_where_all_was_trimmed(harness: StreamHarness) -> None:
    """After everything was read, that is no loss; before, it is."""
    async with sink_of(harness) as (sink, stream), source_of(harness, stream) as source:
        given = events(9)
        at = appended(await sink.append(stream, given[:3], sink.start))
        page = await source.read(source.start, 10, 1)
        await harness.trim(stream, 0)
        at = appended(await sink.append(stream, given[3:5], at))
        page = await source.read(page.position, 10, 1)
        assert not page.trimmed, "what was trimmed had been read"
        assert not page.rewound, "it is the same stream"
        same_events(source, page.entries, given[3:5])
        at = appended(await sink.append(stream, given[5:8], at))
        await harness.trim(stream, 0)
        async with source_of(harness, stream) as another:
            gone = await another.read(page.position, 10, 0)
            assert gone.trimmed, "three entries were passed over without a word"
            assert not gone.entries, "nothing is left"
            appended(await sink.append(stream, given[8:], at))
            page = await another.read(gone.position, 10, 1)
            assert not page.trimmed, "said once is enough"
            assert not page.rewound, "it is the same stream"
            same_events(source, page.entries, given[8:])


async def refuses_what_is_no_position(harness: StreamHarness) -> None:
    async with sink_of(harness) as (sink, _):
        for text in ("", "nowhere", "-1", "1.5"):
            try:
                sink.sort_key(text)
            except ValueError:
                continue
            raise AssertionError(f"{text!r} passes for a position")


StreamCheck = Callable[[StreamHarness], Awaitable[None]]

_ALL: tuple[StreamCheck, ...] = (
    begins_empty,
    keeps_the_order,
    appends_only_to_the_end,
    appends_once_what_is_sent_again,
    shows_the_tail_after_a_position,
    takes_a_batch_of_500,
    takes_payloads_of_200_kib,
    takes_every_text,
    stops_at_one_that_it_refuses,
    keeps_streams_apart,
    refuses_a_late_append,
    lets_one_of_two_writers_win,
    writes_once_what_two_send,
    reads_in_pages,
    waits_for_the_next,
    goes_on_after_a_restart,
    notices_a_lost_tail,
    knows_what_it_holds,
    tells_what_was_trimmed,
    goes_on_where_all_was_trimmed,
    refuses_what_is_no_position,
)
CHECKS: dict[str, StreamCheck] = {check.__name__: check for check in _ALL}


async def run(harness: StreamHarness) -> None:
    """All checks, one after the other; an error says in which of them."""
    for name, check in CHECKS.items():
        try:
            await check(harness)
        except BaseException as error:
            error.add_note(f"in the check {name} of the stream exercise")
            raise
