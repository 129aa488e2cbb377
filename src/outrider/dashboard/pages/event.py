"""The life of one event over all subscribers, as a timeline. Replay, discard, withdraw."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING
from uuid import UUID

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from outrider.dashboard.confidential import is_hidden, without_values
from outrider.dashboard.pages.inputs import begin, need, reason_of, uuid_of, wanted
from outrider.dashboard.rendering import page
from outrider.dashboard.runs import Run
from outrider.errors import NoSuchEvent, ReplayRefused
from outrider.postgres import content_classes
from outrider.postgres.admin import event_history, jobs, recovery
from outrider.postgres.admin import replay as replaying
from outrider.postgres.admin.event_history import Act, Fate, Moment, Story
from outrider.postgres.admin.tenants import refuse_hidden
from outrider.postgres.connection import AsyncSession
from outrider.trace import trace_id

if TYPE_CHECKING:
    from outrider.dashboard.site import Dashboard

WHY = {
    "all_paused": "everything is paused",
    "paused": "the subscription is paused",
    "breaker": "its breaker is open",
    "unread": "not read yet",
    "behind": "waits behind an event of its key",
    "key": "waits for running jobs of its key",
    "suspect": "a worker died while it ran, so it runs alone",
    "retry": "waits for a retry",
    "due": "due now",
    "no_worker": "no worker serves the subscription",
    "unable": "its workers do not know all event types that the subscription wants",
}
OUTCOMES = {
    "replayed": "replayed",
    "skipped_handled": "skipped: its idempotency key has been handled",
    "not_found": "not found: it is neither a dead letter nor handled there",
    "erased": "erased: its payload is gone, so it cannot be handled again",
    "superseded": "skipped: another job with its unique key is pending",
}


@dataclass(frozen=True, slots=True)
class TimelineStep:
    """One thing that happened."""

    at: datetime
    where: str
    """The subscription; empty for the event itself."""
    what: str
    more: str = ""
    tone: str = ""
    """ok, bad, or empty."""


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
        story=story, steps=timeline(story), why=WHY, payload=payload, hidden=hidden,
        trace=trace_id(story.envelope.trace_context),
    )  # fmt: skip


async def replay(board: Dashboard, request: Request) -> Response:
    form = request.state.form
    user, reason = need(board, request, "replay"), reason_of(request)
    event_id, subscription, schema = uuid_of(request.path_params["id"]), form.get("subscription"), board.database.schema
    payload, before = form.get("payload"), form.get("before")
    # A browser sends line breaks as CR LF.
    edited = payload.replace("\r\n", "\n") if payload is not None else None
    edited = None if before is not None and edited == before.replace("\r\n", "\n") else edited

    async def act(conn: AsyncSession, run: Run) -> None:
        await refuse_hidden(conn, schema)
        outcomes = await replaying.replay(
            conn, event_id, schema, board.app.subscriptions,
            subscription=subscription, by=run.by, reason=run.reason, payload=edited,
        )  # fmt: skip
        run.lines += [f"{each.subscription or event_id}: {OUTCOMES[each.outcome]}" for each in outcomes]

    return await begin(board, request, _run("Replay", event_id, subscription, user.name, reason), act)


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

    return await begin(board, request, _run("Withdraw", event_id, None, user.name, reason), act)


def _run(verb: str, event_id: UUID, subscription: str | None, by: str, reason: str) -> Run:
    title = f"{verb} {event_id}" + (f" at {subscription}" if subscription else "")
    return Run(verb.lower(), title, by, reason, f"/event/{event_id}")


def timeline(story: Story) -> list[TimelineStep]:
    """Everything that happened to the event, the oldest first."""
    envelope = story.envelope
    steps = [TimelineStep(envelope.occurred_at, "", f"published by {envelope.source}")] if envelope.occurred_at else []
    if (came_at := story.passages.get(envelope.origin or "")) is not None:
        steps.append(TimelineStep(came_at, envelope.origin or "", "came in through this inbox", tone="ok"))
    steps += [TimelineStep(each.occurred_at, "", f"led to {each.event_type}", str(each.id)) for each in story.children]
    for fate in story.fates:
        if fate.kind == "relay" and fate.status == "delivered" and (sent_by := story.passages.get(fate.subscription)):
            steps.append(TimelineStep(sent_by, fate.subscription, "was in its stream by now", tone="ok"))
        steps += [_moment(fate.subscription, each) for each in fate.history]
        steps += _ends(fate)
    steps += [_act(each) for each in story.acts]
    if story.withdrawal is not None:
        steps.append(
            TimelineStep(story.withdrawal.at, "", f"withdrawn by {story.withdrawal.by}", story.withdrawal.reason or "")
        )
    if story.erased_at is not None:
        steps.append(TimelineStep(story.erased_at, "", "payload erased"))
    return sorted(steps, key=lambda step: step.at)


def _ends(fate: Fate) -> Iterator[TimelineStep]:
    if fate.handled_at is not None:
        other = f" in place of it, as {fate.handled_as}" if fate.handled_as else ""
        attempt = f" at attempt {fate.attempts}" if fate.attempts and fate.attempts > 1 else ""
        yield TimelineStep(fate.handled_at, fate.subscription, f"handled{other}{attempt}", tone="ok")
    if fate.buried_at is not None and fate.status == "failed":
        # The time of the transaction, which began before the last attempt failed.
        when = max([fate.buried_at, *(each.at for each in fate.history)])
        yield TimelineStep(when, fate.subscription, "became a dead letter", tone="bad")


def _moment(where: str, each: Moment) -> TimelineStep:
    cycle = f" of cycle {each.cycle}" if each.cycle > 1 else ""
    match each.what:
        case "failed":
            on = f" on {each.worker}" if each.worker else ""
            return TimelineStep(
                each.at, where, f"attempt {each.attempt}{cycle} failed{on}: {each.code}", each.message or "", "bad"
            )
        case "replayed":
            how = ", with another payload" * each.edited + ", by force" * each.forced
            return TimelineStep(each.at, where, f"replayed by {each.by}{how}", each.reason or "")
        case "superseded":
            return TimelineStep(each.at, where, "superseded by a newer job with its unique key")
        case other:
            return TimelineStep(each.at, where, f"{other} by {each.by}", each.reason or "")


def _act(act: Act) -> TimelineStep:
    return TimelineStep(
        act.at, act.subscription or "", f"{act.action} by {act.by} (role {act.role})", act.details.get("reason") or ""
    )
