"""The history of one event in sentences: what it is, its state at each subscription, and how that came about; lists."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime

from rich.console import Console
from rich.table import Table

from outrider.cli.output.text import (
    UNREADABLE,
    at,
    capped,
    counted,
    lines,
    make_table,
    moment,
    one_line,
    roughly,
    safe,
    say,
    short,
)
from outrider.envelope import LONGEST
from outrider.postgres.admin.event_history import Act, Fate, Listing, Moment, Story
from outrider.postgres.admin.waiting import MOST_BEHIND, EventBehind, WaitingEvent

PAYLOAD_LINES = 100
LONGEST_LINE = 1000
WHOLE_ID = 36
"""Characters of an id: it can be copied, however narrow the terminal is."""
STYLES = {"delivered": "green", "failed": "red", "pending": "yellow", "running": "yellow"}


def title(story: Story) -> str:
    envelope = story.envelope
    return f"{one_line(envelope.event_type)} version {envelope.event_version}, log position {envelope.seq}"


def tell(story: Story) -> None:
    say(title(story), "bold")
    facts = list(_facts(story))
    width = max(len(name) for name, _ in facts)
    for name, value in facts:
        say(f"{name:{width}}  {one_line(value)}", indent=2)
    say(_payload(story), indent=4)
    if story.withdrawal is not None:
        why = f": {story.withdrawal.reason}" if story.withdrawal.reason else ""
        say(f"\nwithdrawn {at(story.withdrawal.at)} by {one_line(f'{story.withdrawal.by}{why}')}", "bold")
    if not story.fates:
        say("\nno subscription has it: none wants it, those that do came later, or its dead letter has expired")
    for fate in story.fates:
        say(f"\n{one_line(fate.subscription)}: {standing(fate, story.read_at)}", STYLES.get(fate.status, ""))
        for when, what, more in _moments(fate):
            say(f"{at(when)}  {one_line(what)}", indent=2)
            if more:
                say(safe(more), indent=6)
    if story.children:
        say("\nevents that its handlers published", "bold")
    for child in story.children:
        say(f"{child.id}  {one_line(child.event_type)}, log position {child.seq}", indent=2)
    if not story.children_searched:
        say("\nevents that its handlers published: not searched, because the search took too long", "bold")
    if story.jobs:
        say("\nunfinished jobs that its handlers enqueued", "bold")
    for job in story.jobs:
        status = {"in_flight": "running", "failed": "failed: a dead letter"}.get(job.status, job.status)
        say(f"{job.id}  {one_line(job.job_type)}: {one_line(status)}", indent=2)
    if story.acts:
        say("\nwhat operators did", "bold")
    for act in story.acts:
        say(f"{at(act.at)}  {one_line(_act(act))}", indent=2)


def tell_all(found: Listing) -> None:
    if found.events:
        table = Table(show_lines=True)
        table.add_column("event", no_wrap=True)
        table.add_column("what it is", overflow="fold")
        table.add_column("what became of it", overflow="fold")
        for each in found.events:
            table.add_row(
                lines(str(each.id), f"position {each.seq}", f"occurred {at(each.occurred_at)}"),
                lines(
                    f"{each.event_type} version {each.event_version}",
                    f"by {each.source}",
                    each.key is not None and f"key {short(each.key)}",
                    each.workspace_id is not None and f"workspace {short(each.workspace_id)}",
                    each.erased_at is not None and "erased",
                ),
                lines(*(f"{name} {status}" for name, status in sorted(each.fates.items()))),
            )
        Console().print(table)
    number = len(found.events)
    said = f"{number:,} event{'s match' if number != 1 else ' matches'}" if number else "no event matches"
    if found.before is None:
        say(f"{said}{'; no older ones do' * bool(number)}")
    elif number and found.events[-1].seq == found.before:
        say(f"{said}; older ones: --before {found.before}")
    else:
        say(f"{said} among the {found.scanned:,} that were searched; older ones: --before {found.before}")


def standing(fate: Fate, now: datetime) -> str:
    """The status, and what it means at this subscription, on one line."""
    match fate.status:
        case "pending":
            attempts = f"; {_times(fate.attempts)} failed" if fate.attempts else ""
            return f"pending: {', '.join(_why(fate, now))}{attempts}"
        case "running":
            cancelling = ", cancelling" if fate.cancelled_at is not None else ""
            return f"running, attempt {fate.attempts}{cancelling}"
        case "delivered" if fate.handled_as is not None:
            return f"delivered, as event {fate.handled_as}, which has the same idempotency key"
        case "delivered" if fate.handled_at is not None:
            return f"delivered {at(fate.handled_at)}" + (f", at attempt {fate.attempts}" if fate.attempts != 1 else "")
        case "delivered" if fate.kind == "relay":
            return "delivered: it is in its stream"
        case "delivered":
            return "delivered: its reader has read it"
        case "failed":
            when = f" since {at(fate.buried_at)}" if fate.buried_at else ""
            said = f"failed: a dead letter{when}, {one_line(fate.error_code)} after {_times(fate.attempts)}"
        case "discarded" if fate.history and fate.history[-1].what == "superseded":
            said = "superseded: a newer one has its unique key"
        case "discarded" if fate.error_code == "cancelled":
            said = "cancelled"
        case other:
            said = one_line(other)
    if fate.handled_as is not None:
        said += f"; event {fate.handled_as}, which has the same idempotency key, was handled"
    return said


def _facts(story: Story) -> Iterator[tuple[str, object]]:
    envelope = story.envelope
    yield "id", envelope.id
    if story.also:
        yield "published again", "at log position " + ", ".join(map(str, story.also))
    if envelope.occurred_at is not None:
        yield "occurred", f"{at(envelope.occurred_at)}, {roughly(story.read_at - envelope.occurred_at)} ago"
    yield "source", envelope.source
    for name, value in (
        ("target", envelope.target),
        ("origin", envelope.origin),
        ("caused by", story.caused_by),
        ("key", envelope.key),
        ("kind", envelope.aggregate_kind),
        ("entity version", envelope.entity_version),
        ("idempotency key", None if envelope.idempotency_key == str(envelope.id) else envelope.idempotency_key),
        ("workspace", envelope.workspace_id),
        ("generation", envelope.generation or None),
    ):
        if value is not None:
            yield name, value
    yield "channel", envelope.channel
    for name, value in (envelope.trace_context or {}).items():
        yield f"trace {name}", value
    if story.erased_at is not None:
        yield "erased", f"at {at(story.erased_at)}: its payload is gone"
    size = f"{story.payload_bytes} bytes" if envelope.payload_json else f"more than {LONGEST:,} bytes as text"
    yield "payload", f"{size}, {envelope.content_class}"


def _payload(story: Story) -> str:
    if not story.payload_pretty:
        return UNREADABLE
    lines = safe(story.payload_pretty).split("\n")
    shown = [line if len(line) <= LONGEST_LINE else f"{line[:LONGEST_LINE]}… (cut)" for line in lines[:PAYLOAD_LINES]]
    if len(lines) > PAYLOAD_LINES:
        shown.append(f"… ({len(lines) - PAYLOAD_LINES} more lines; --json has all)")
    return "\n".join(shown)


def _why(fate: Fate, now: datetime) -> Iterator[str]:
    for why in fate.why:
        match why:
            case "all_paused":
                yield "everything is paused" + _since(fate.paused_at)
            case "paused":
                yield "the subscription is paused" + ("" if "all_paused" in fate.why else _since(fate.paused_at))
            case "breaker":
                yield f"its breaker is open until {_soon(fate.open_until, now)}"
            case "unread":
                yield "not read yet"
            case "behind":
                yield f"waits behind event {fate.behind} at log position {fate.behind_seq}"
            case "key":
                yield "waits for its key"
            case "suspect":
                yield "a worker died while it ran, so it runs alone"
            case "retry":
                yield f"waits for a retry at {_soon(fate.run_at, now)}"
            case "due":
                yield "due now"
            case "no_worker":
                yield "no worker serves the subscription"
            case "unable":
                yield "its workers do not know all event types that the subscription wants"


def _moments(fate: Fate) -> Iterator[tuple[datetime, str, str]]:
    """When, what, and the message."""
    for each in fate.history:
        yield each.at, _moment(each), each.message or ""
    if fate.handled_at is not None and fate.history:
        yield fate.handled_at, "handled", ""


def _moment(each: Moment) -> str:
    cycle = f" of cycle {each.cycle}" if each.cycle > 1 else ""
    match each.what:
        case "failed":
            worker = f", on {each.worker}" if each.worker else ""
            return f"attempt {each.attempt}{cycle} failed: {each.code}{worker}"
        case "replayed":
            how = [
                "by force" * each.forced,
                "with another payload" * each.edited,
                f"for generation {each.generation}" * (each.generation is not None),
            ]
            return ", ".join([f"replayed by {each.by}", *filter(None, how)])
        case "discarded" | "cancelled":
            return f"{each.what} by {each.by}" + (f": {each.reason}" if each.reason else "")
        case "superseded":
            return "superseded by a newer one with its unique key"


def _act(act: Act) -> str:
    whose = f" for {act.subscription}" if act.subscription else ""
    reason = f": {act.details['reason']}" if act.details.get("reason") else ""
    return f"{act.action}{whose} by {act.by} (role {act.role}){reason}"


def _times(count: int | None) -> str:
    return "1 attempt" if count == 1 else f"{count or 0} attempts"


def _since(when: datetime | None) -> str:
    return f" since {at(when)}" if when else ""


def _soon(when: datetime | None, now: datetime) -> str:
    return f"{at(when)}, in {roughly(when - now)}" if when else "some time"


def tell_waiting(found: Sequence[WaitingEvent]) -> None:
    table = make_table("event", "subscription, key", "tried again", "why", "behind")
    table.columns[0].min_width = WHOLE_ID
    for each in found:
        behind = "all later events" if each.order == "total" else capped(each.behind, MOST_BEHIND)
        table.add_row(
            lines(each.event_id, each.event_type),
            lines(each.subscription, each.key is not None and f"key {short(each.key)}"),
            lines(moment(each.run_at), counted(each.attempts, "attempt")),
            lines(f"{each.code}: {short(each.error)}"),
            behind,
        )
    Console().print(table)


def tell_behind(found: Sequence[EventBehind]) -> None:
    table = make_table("event", "subscription", "log position", "waits since")
    table.columns[0].min_width = WHOLE_ID
    for each in found:
        table.add_row(
            lines(each.event_id, each.event_type), lines(each.subscription), f"{each.seq:,}", moment(each.since)
        )
    Console().print(table)
