"""Entries that an inbox could not read, once more: with the code of today some of them may be events."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from outrider.error_text import describe
from outrider.errors import SubscriptionRefused
from outrider.inbox.receiver import Landing
from outrider.postgres import inboxes
from outrider.postgres.connection import AsyncSession
from outrider.postgres.inboxes import Kept, Place

PAGE = 500


@dataclass(frozen=True, slots=True)
class Again:
    """What came of it."""

    ingested: int
    """That were new."""
    known: int
    """That had come in before, or were older than what a replica holds."""
    refused: Sequence[tuple[Kept, str]]
    """Those that stay, and why."""


async def try_again(conn: AsyncSession, name: str, landing: Landing, ids: Sequence[int] | None, schema: str) -> Again:
    """All of an inbox, or those with these ids, in one transaction; where the inbox stands in its stream does not change."""
    events, through, refused = 0, list[int](), list[tuple[Kept, str]]()
    async with conn.transaction():
        stands = await inboxes.hold_streams(conn, name, schema)
        kept = await inboxes.refused_again(conn, name, ids, schema)
        if missing := sorted(set(ids or ()) - {each.id for each in kept}):
            raise SubscriptionRefused(
                f"{name} has refused no entry {', '.join(map(str, missing))}, or it has come in since: "
                f"outrider inbox refused {name}"
            )
        for stream in dict.fromkeys(each.stream for each in kept):
            place = Place(name, stream, stands[stream], stands[stream])
            of_stream = [each for each in kept if each.stream == stream]
            for start in range(0, len(of_stream), PAGE):
                readable, unreadable = _decoded(of_stream[start : start + PAGE], landing)
                landed, unstorable = await _land(conn, place, readable, landing)
                events += landed
                refused += unreadable + unstorable
                left = {each.id for each, _ in refused}
                through += [each.id for each, _ in readable if each.id not in left]
        await inboxes.forget_refused(conn, through, schema)
    return Again(events, len(through) - events, refused)


def _decoded(kept: Sequence[Kept], landing: Landing) -> tuple[list[tuple[Kept, object]], list[tuple[Kept, str]]]:
    readable, refused = list[tuple[Kept, object]](), list[tuple[Kept, str]]()
    for each in kept:
        try:
            readable.append((each, landing.decode(each.data)))
        except Exception as error:  # the codec may be anybody's
            refused.append((each, describe(error)))
    return readable, refused


async def _land(
    conn: AsyncSession, place: Place, readable: Sequence[tuple[Kept, object]], landing: Landing
) -> tuple[int, list[tuple[Kept, str]]]:
    """All at once, which is a savepoint; if the database refuses that, one by one, to know which."""
    if not readable:
        return 0, []
    try:
        landed = await landing.land(conn, place, [value for _, value in readable], ())
    except inboxes.Unstorable as error:
        if len(readable) == 1:
            return 0, [(readable[0][0], inboxes.reason(error))]
        events, refused = 0, list[tuple[Kept, str]]()
        for each in readable:
            more, unstorable = await _land(conn, place, [each], landing)
            events += more
            refused += unstorable
        return events, refused
    if landed.outcome != "ingested":
        raise SubscriptionRefused(
            f"nothing came in: {place.subscription} is {landed.outcome}; outrider subscription resume lets it go on"
        )
    return landed.events, []
