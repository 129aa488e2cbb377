"""The life of one event over all subscribers, as a timeline. Replay, discard, withdraw."""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import UUID

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from outrider.dashboard.confidential import is_hidden, without_values
from outrider.dashboard.pages.inputs import begin, need, reason_of, uuid_of, wanted
from outrider.dashboard.rendering import page
from outrider.dashboard.runs import Run
from outrider.dashboard.timeline import WHY, of_event
from outrider.errors import NoSuchEvent, ReplayRefused
from outrider.postgres import content_classes
from outrider.postgres.admin import event_history, jobs, recovery
from outrider.postgres.admin import replay as replaying
from outrider.postgres.admin.tenants import refuse_hidden
from outrider.postgres.connection import AsyncSession
from outrider.trace import trace_id

if TYPE_CHECKING:
    from outrider.dashboard.site import Dashboard

OUTCOMES = {
    "replayed": "replayed",
    "skipped_handled": "skipped: its idempotency key has been handled",
    "not_found": "not found: it is neither a dead letter nor handled there",
    "erased": "erased: its payload is gone, so it cannot be handled again",
    "superseded": "skipped: another job has its unique key",
}


async def find(board: Dashboard, request: Request) -> Response:  # noqa: ARG001
    """From the search field."""
    event_id = uuid_of(wanted(request, "id") or "")
    return RedirectResponse(f"{request.scope.get('root_path', '')}/event/{event_id}", 303)


async def show(board: Dashboard, request: Request) -> Response:
    event_id, schema = uuid_of(request.path_params["id"]), board.database.schema
    async with board.database.reading() as conn:
        story = await event_history.story(conn, event_id, schema)
        is_job = story is None and (await jobs.whole(conn, event_id, schema)).jobs
        added = await content_classes.allowed(conn, schema)
    if is_job:
        return RedirectResponse(f"{request.scope.get('root_path', '')}/jobs/{event_id}", 303)
    if story is None:
        raise NoSuchEvent(event_id, schema)
    hidden = is_hidden(story.envelope.content_class, board.values_up_to, added)
    payload = without_values(story.payload_pretty) if hidden and story.payload_pretty else story.payload_pretty
    return await page(
        board, request, "event.html", "log",
        story=story, steps=of_event(story), why=WHY, payload=payload, hidden=hidden,
        trace=trace_id(story.envelope.trace_context),
    )  # fmt: skip


async def replay(board: Dashboard, request: Request) -> Response:
    form = request.state.form
    event_id, subscription, schema = uuid_of(request.path_params["id"]), form.get("subscription"), board.database.schema
    payload, before = form.get("payload"), form.get("before")
    # A browser sends line breaks as CR LF.
    edited = payload.replace("\r\n", "\n") if payload is not None else None
    edited = None if before is not None and edited == before.replace("\r\n", "\n") else edited
    user, reason = need(board, request, "replay" if edited is None else "edit"), reason_of(request)
    if edited is not None:
        await _refuse_hidden(board, event_id)

    async def act(conn: AsyncSession, run: Run) -> None:
        await refuse_hidden(conn, schema)
        outcomes = await replaying.replay(
            conn, event_id, schema, board.app.subscriptions,
            subscription=subscription, by=run.by, reason=run.reason, payload=edited,
        )  # fmt: skip
        run.lines += [f"{each.subscription or event_id}: {OUTCOMES[each.outcome]}" for each in outcomes]
        run.acted = any(each.outcome == "replayed" for each in outcomes)

    return await begin(board, request, _run("Replay", event_id, subscription, user.name, reason), act)


async def _refuse_hidden(board: Dashboard, event_id: UUID) -> None:
    """Who may not see the values must not replace them. A job that was enqueued has no content class."""
    schema = board.database.schema
    async with board.database.reading() as conn:
        story = await event_history.story(conn, event_id, schema)
        added = await content_classes.allowed(conn, schema)
        found = () if story else (await jobs.whole(conn, event_id, schema)).jobs
    of_event = story is not None or any(each.seq is not None for each in found)
    if of_event and (story is None or is_hidden(story.envelope.content_class, board.values_up_to, added)):
        raise HTTPException(
            403, "The payload cannot be edited here: its values are hidden because of its content class."
        )


async def discard(board: Dashboard, request: Request) -> Response:
    user, reason = need(board, request, "discard"), reason_of(request)
    event_id, schema = uuid_of(request.path_params["id"]), board.database.schema
    subscription = request.state.form.get("subscription")

    async def act(conn: AsyncSession, run: Run) -> None:
        await refuse_hidden(conn, schema)
        done = await recovery.discard_one(conn, event_id, subscription, schema, by=run.by, reason=run.reason)
        if not done:
            raise ReplayRefused(f"nothing was discarded: {event_id} is not a dead letter")
        run.lines.append(f"{done} discarded")

    return await begin(board, request, _run("Discard", event_id, subscription, user.name, reason), act)


async def withdraw(board: Dashboard, request: Request) -> Response:
    user, reason = need(board, request, "withdraw"), reason_of(request)
    event_id, schema = uuid_of(request.path_params["id"]), board.database.schema

    async def act(conn: AsyncSession, run: Run) -> None:
        outcomes = await event_history.withdraw(conn, event_id, run.by, run.reason, schema)
        late = {"delivered": "delivered, too late", "withdrawn": "withdrawn"}
        run.lines += [f"{each.subscription}: {late[each.outcome]}" for each in outcomes] or ["withdrawn"]
        run.acted = not outcomes or any(each.outcome == "withdrawn" for each in outcomes)

    return await begin(board, request, _run("Withdraw", event_id, None, user.name, reason), act)


def _run(verb: str, event_id: UUID, subscription: str | None, by: str, reason: str) -> Run:
    title = f"{verb} {event_id}" + (f" at {subscription}" if subscription else "")
    return Run(verb.lower(), title, by, reason, f"/event/{event_id}")
