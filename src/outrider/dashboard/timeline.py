"""What happened to an event or to a job, step by step, and what it waits for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from operator import attrgetter
from uuid import UUID

from outrider.postgres.admin.event_history import Act, Fate, Moment, Story, moment_of
from outrider.postgres.admin.jobs import JobRow

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


@dataclass(frozen=True, slots=True)
class TimelineStep:
    """One thing that happened."""

    at: datetime | None
    """None: it is so now."""
    where: str
    """The subscription; empty for the event itself."""
    what: str
    more: str = ""
    tone: str = ""
    """ok, bad, now, or empty."""
    event: UUID | None = None
    """Another event that it is about."""


def of_event(story: Story) -> list[TimelineStep]:
    """Everything that happened to the event, the oldest first, and then what it waits for."""
    envelope = story.envelope
    steps = [TimelineStep(envelope.occurred_at, "", f"published by {envelope.source}")] if envelope.occurred_at else []
    if (came_at := story.passages.get(envelope.origin or "")) is not None:
        steps.append(TimelineStep(came_at, envelope.origin or "", "came in through this inbox", tone="ok"))
    steps += [TimelineStep(each.occurred_at, "", f"led to {each.event_type}", event=each.id) for each in story.children]
    for fate in story.fates:
        if fate.kind == "relay" and fate.status == "delivered" and (sent_by := story.passages.get(fate.subscription)):
            steps.append(TimelineStep(sent_by, fate.subscription, "was in its stream by now", tone="ok"))
        steps += _taken(fate)
        steps += [_moment(fate.subscription, each) for each in fate.history]
        steps += _ends(fate)
    steps += [_act(each) for each in story.acts]
    if story.withdrawal is not None:
        steps.append(
            TimelineStep(story.withdrawal.at, "", f"withdrawn by {story.withdrawal.by}", story.withdrawal.reason or "")
        )
    if story.erased_at is not None:
        steps.append(TimelineStep(story.erased_at, "", "payload erased"))
    return [*sorted(steps, key=attrgetter("at")), *filter(None, map(_now, story.fates))]


def of_job(job: JobRow) -> list[TimelineStep]:
    by = f" by {job.source}" if job.source else ""
    steps = [TimelineStep(job.created_at, "", f"enqueued{by}")] if job.created_at else []
    steps += [_moment("", moment_of(each)) for each in job.history or ()]
    if job.state == "running" and job.claimed_at is not None:
        on = f" by {job.worker_name}" if job.worker_name else ""
        steps.append(TimelineStep(job.claimed_at, "", f"claimed{on}: it runs", tone="now"))
    if job.done_at is not None:
        steps.append(TimelineStep(job.done_at, "", "done", tone="ok"))
    if job.cancelled_at is not None:
        steps.append(TimelineStep(job.cancelled_at, "", "its cancellation was requested"))
    return sorted(steps, key=attrgetter("at"))


def _now(fate: Fate) -> TimelineStep | None:
    """What the event waits for at one subscription."""
    if fate.status == "running":
        return TimelineStep(None, fate.subscription, "runs", tone="now")
    if fate.status != "pending":
        return None
    told = "; ".join(WHY[each] for each in fate.why) or "pending"
    return TimelineStep(None, fate.subscription, told, tone="now", event=fate.behind if "behind" in fate.why else None)


def _taken(fate: Fate) -> Iterator[TimelineStep]:
    first = next(iter(fate.history), None)
    # A replay by force makes a new row of an event that was handled.
    again = first is not None and (first.what == "replayed" or (fate.began_at and first.at < fate.began_at))
    if fate.began_at is not None and not again:
        yield TimelineStep(fate.began_at, fate.subscription, "taken: a job" if fate.kind == "job" else "taken")
    if fate.claimed_at is not None:
        on = f" by {fate.worker}" if fate.worker else ""
        yield TimelineStep(fate.claimed_at, fate.subscription, f"claimed{on}")


def _ends(fate: Fate) -> Iterator[TimelineStep]:
    if fate.handled_at is not None:
        other = f" in place of it, as {fate.handled_as}" if fate.handled_as else ""
        attempt = f" at attempt {fate.attempts}" if fate.attempts and fate.attempts > 1 else ""
        at_once = fate.kind == "handler" and fate.attempts == 1 and not fate.handled_as  # in one transaction
        what = "taken and handled" if at_once else f"handled{other}{attempt}"
        yield TimelineStep(fate.handled_at, fate.subscription, what, tone="ok")
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
