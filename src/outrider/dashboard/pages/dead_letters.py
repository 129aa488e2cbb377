"""Dead letters by cause, and replay or discard of all that match, with a preview first; what waits behind what."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import Response

from outrider.dashboard.pages.inputs import begin, counted, need, number_of, position, reason_of, uuid_of, wanted
from outrider.dashboard.rendering import page
from outrider.dashboard.runs import Run
from outrider.errors import ConfigError
from outrider.postgres.admin import dead_letters, recovery, waiting
from outrider.postgres.admin.dead_letters import Filter, Filtered
from outrider.postgres.admin.recovery import Done
from outrider.postgres.admin.tenants import refuse_hidden
from outrider.postgres.connection import AsyncSession

if TYPE_CHECKING:
    from outrider.dashboard.site import Dashboard

FIELDS = ("subscription", "event_type", "code", "fingerprint", "since", "until", "workspace_id")
LISTED = 50
WAITING = 10
"""Events that wait for a retry, below the dead letters. A page of their own lists all."""
COUNTED = 20_000
"""Dead letters that a page counts."""
VERBS = {"replay": "Replay", "discard": "Discard"}


async def show(board: Dashboard, request: Request) -> Response:
    given, after = _given(request.query_params), position(request, "after") or 0
    which, schema = Filter(**given), board.database.schema
    async with board.database.reading() as conn:
        groups = await dead_letters.groups(conn, which, schema, most=COUNTED)
        letters = await dead_letters.letters(conn, which, schema, limit=LISTED, after=after) if which and groups else []
        retries = await waiting.events(conn, schema, limit=WAITING) if not which else []
    following = urlencode({**given, "after": letters[-1].id}) if len(letters) == LISTED else None
    return await page(
        board, request, "dead_letters.html", "dead_letters", given=given, query=urlencode(given), groups=groups,
        letters=letters, listed=WAITING, counted=COUNTED, after=after, following=following, retries=retries,
    )  # fmt: skip


async def show_waiting(board: Dashboard, request: Request) -> Response:
    """The events that wait for a retry, from a place on."""
    after, subscription, schema = wanted(request, "after"), wanted(request, "subscription"), board.database.schema
    async with board.database.reading() as conn:
        retries = await waiting.events(conn, schema, subscription=subscription, after=after, limit=LISTED)
    return await page(
        board, request, "waiting.html", "dead_letters", retries=retries, listed=LISTED, after=after, of=subscription
    )


async def show_behind(board: Dashboard, request: Request) -> Response:
    """The events that wait behind one."""
    event_id, after = uuid_of(request.path_params["id"]), position(request, "after") or 0
    subscription, schema = wanted(request, "subscription"), board.database.schema
    async with board.database.reading() as conn:
        found = await waiting.behind(conn, event_id, schema, subscription=subscription, after=after, limit=LISTED)
    return await page(
        board, request, "behind.html", "dead_letters",
        event_id=event_id, subscription=subscription, found=found, listed=LISTED,
    )  # fmt: skip


async def preview(board: Dashboard, request: Request) -> Response:
    """How many there are, before anything is done."""
    verb = _verb(wanted(request, "verb"))
    need(board, request, verb)
    given = _given(request.query_params)
    async with board.database.reading() as conn:
        moment = await dead_letters.clock(conn, board.database.schema)
        which = recovery.as_of(Filter(**given), moment)
        count = await dead_letters.count(conn, which, board.database.schema, most=COUNTED)
    return await page(
        board,
        request,
        "dead_letters_act.html",
        "dead_letters",
        given=given,
        query=urlencode(given),
        verb=verb,
        count=count,
        exact=count.letters < COUNTED,
        moment=moment.isoformat(),
    )


async def act(board: Dashboard, request: Request) -> Response:
    form = request.state.form
    verb = _verb(form.get("verb"))
    user, reason, schema = need(board, request, verb), reason_of(request), board.database.schema
    given = _given(counted(request))
    which, rate = _as_counted(Filter(**given), form.get("counted_at")), _rate(form.get("rate", ""))
    title, total = f"{VERBS[verb]} dead letters", number_of(form.get("letters", ""))
    run = Run(verb, title, user.name, reason, "/dead-letters", total=total, in_chunks=True)

    async def perform(conn: AsyncSession, run: Run) -> None:
        def progress(done: Done) -> None:
            run.done = done.letters

        await refuse_hidden(conn, schema)
        signed: dict[str, Any] = {"by": run.by, "reason": run.reason}
        if verb == "replay":
            done = await recovery.replay(conn, which, schema, **signed, rate=rate, on_progress=progress, stop=run.stop)
        else:
            done = await recovery.discard(conn, which, schema, **signed, on_progress=progress, stop=run.stop)
        run.done, run.acted, run.stopped = done.letters, bool(done.replayed or done.discarded), done.stopped
        run.lines += told(done)

    return await begin(board, request, run, perform)


def told(done: Done) -> list[str]:
    counts = (
        (done.replayed, "replayed"),
        (done.discarded, "discarded"),
        (done.skipped_handled, "skipped: their idempotency key has been handled"),
        (done.superseded, "skipped: other jobs have their unique key"),
        (done.not_found, "already replayed or discarded by somebody else"),
    )
    return [f"{number:,} {what}" for number, what in counts if number]


def _given(fields: Mapping[str, str]) -> Filtered:
    given = {name: value for name in FIELDS if (value := fields.get(name, "").strip())}
    return cast(Filtered, given)


def _verb(verb: str | None) -> str:
    if verb not in VERBS:
        raise ConfigError("a form says replay or discard")
    return verb


def _as_counted(which: Filter, moment: str | None) -> Filter:
    """What has died since the preview was not in its number, so nobody has agreed to act on it."""
    if not moment:
        return which
    try:
        found = datetime.fromisoformat(moment)
        return recovery.as_of(which, found if found.tzinfo else found.replace(tzinfo=UTC))
    except (ValueError, OverflowError):
        raise ConfigError(f"counted_at: {moment:.40} is not a time") from None


def _rate(text: str) -> float | None:
    try:
        return float(text) if text.strip() else None
    except ValueError:
        raise ConfigError(f"rate: {text:.30} is not a number") from None
