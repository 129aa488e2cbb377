"""Tries again the entries that an inbox has refused: newer code may be able to read them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from outrider.error_text import describe
from outrider.errors import SubscriptionRefused
from outrider.inbox.destination import Destination
from outrider.postgres import inboxes
from outrider.postgres.connection import AsyncSession
from outrider.postgres.inboxes import InboxProgress, Kept

PAGE = 500


@dataclass(frozen=True, slots=True)
class RetryResult:
    ingested: int
    """New events."""
    known: int
    """Entries that had come in before, or are older than what a replica holds."""
    refused: Sequence[tuple[Kept, str]]
    """Entries that are still refused, and why."""


async def retry_refused(
    conn: AsyncSession, name: str, destination: Destination, ids: Sequence[int] | None, schema: str
) -> RetryResult:
    """All refused entries of an inbox, or those with these ids, in one transaction. The position of the inbox stays."""
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
            progress = InboxProgress(name, stream, stands[stream], stands[stream])
            of_stream = [each for each in kept if each.stream == stream]
            for start in range(0, len(of_stream), PAGE):
                readable, unreadable = _decoded(of_stream[start : start + PAGE], destination)
                stored, unstorable = await _store(conn, progress, readable, destination)
                events += stored
                refused += unreadable + unstorable
                left = {each.id for each, _ in refused}
                through += [each.id for each, _ in readable if each.id not in left]
        await inboxes.forget_refused(conn, through, schema)
    return RetryResult(events, len(through) - events, refused)


def _decoded(
    kept: Sequence[Kept], destination: Destination
) -> tuple[list[tuple[Kept, object]], list[tuple[Kept, str]]]:
    readable, refused = list[tuple[Kept, object]](), list[tuple[Kept, str]]()
    for each in kept:
        try:
            readable.append((each, destination.decode(each.data)))
        except Exception as error:  # the codec may be a user's
            refused.append((each, describe(error)))
    return readable, refused


async def _store(
    conn: AsyncSession, progress: InboxProgress, readable: Sequence[tuple[Kept, object]], destination: Destination
) -> tuple[int, list[tuple[Kept, str]]]:
    """All in one savepoint. If the database refuses that, one by one, to find out which entry it was."""
    if not readable:
        return 0, []
    try:
        stored = await destination.store(conn, progress, [value for _, value in readable], ())
    except inboxes.Unstorable as error:
        if len(readable) == 1:
            return 0, [(readable[0][0], inboxes.reason(error))]
        events, refused = 0, list[tuple[Kept, str]]()
        for each in readable:
            more, unstorable = await _store(conn, progress, [each], destination)
            events += more
            refused += unstorable
        return events, refused
    if stored.outcome != "ingested":
        raise SubscriptionRefused(
            f"nothing was ingested: {progress.subscription} is {stored.outcome}; to go on, run outrider subscription resume"
        )
    return stored.events, []
