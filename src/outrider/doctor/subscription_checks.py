"""What the state of subscriptions means. Decides without I/O."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta

from outrider.doctor.finding import SHOWN, Finding, counted, critical, more, note, ok, span, warning
from outrider.postgres.admin.diagnostics import MOST, PATIENCE, Failing, Unserved
from outrider.postgres.admin.status import Standing, Status

STARTING = timedelta(seconds=15)
"""A worker that is younger may not have told yet that it listens."""


def judge_standing(
    found: Status,
    unread: Mapping[str, datetime],
    failing: Mapping[str, Failing],
    context: str,
    declared: set[str] | None,
    polls: bool = False,
) -> Iterator[Finding]:
    """`declared`: the subscriptions of the app, which speaks for that context; None without an app. `polls`: workers poll on
    purpose."""
    if found.pending:
        yield warning("schema", f"migrations are pending: {', '.join(found.pending)}", "run outrider migrate")
    else:
        yield ok("schema", f"version {found.version}, up to date")
    if found.paused_at is not None:
        yield warning(
            "paused",
            f"everything is paused since {found.paused_at:%Y-%m-%d %H:%M}",
            "outrider subscription resume --all",
        )
    for each in found.subscriptions:
        served = any(worker.live and each.name in worker.subscriptions for worker in found.workers)
        if declared is not None and each.context == context and each.name not in declared and not served:
            yield warning(
                "orphans",
                f"{each.name} is registered, and the app does not declare it: {counted(each.lag, 'log position')} "
                f"{'waits' if each.lag == 1 else 'wait'} for it",
                f"outrider subscription rename {each.name} NEW if it has another name now, else "
                f"outrider subscription retire {each.name}",
            )
        else:
            yield from _of_workers(each, found, failing.get(each.name))
        yield from _of_generations(each, found)
        owed_since = unread.get(each.name)
        still = each.paused_at is not None or found.paused_at is not None
        if owed_since is not None and found.read_at - owed_since > PATIENCE and each.kind != "reader" and not still:
            yield warning(
                "lag",
                f"{each.name} has not read an event of {span(found.read_at - owed_since)} ago; "
                f"{counted(each.lag, 'log position')} {'is' if each.lag == 1 else 'are'} ahead of it",
                "its workers are missing, busy or stuck: outrider status says which; see transactions, latency",
            )
        if each.paused_at is not None:
            yield note(
                "paused",
                f"{each.name} is paused since {each.paused_at:%Y-%m-%d %H:%M}",
                f"outrider subscription resume {each.name}",
            )
        if each.dead:
            yield note(
                "dead_letters",
                f"{each.name} has {counted(each.dead, 'dead letter', MOST)}",
                f"outrider dlq list --subscription {each.name}",
            )
    yield from _listening(found, polls)


def _of_workers(each: Standing, found: Status, failing: Failing | None) -> Iterator[Finding]:
    if "no_worker" in each.states:
        if not found.live and each.waiting_since is not None:
            yield critical(
                "workers",
                f"nobody serves {each.name}, for which something waits since {each.waiting_since:%Y-%m-%d %H:%M}: there "
                "is no worker at all",
                "start one: outrider worker --app module:name",
            )
        else:
            yield warning("workers", f"nobody serves {each.name}", "start one: outrider worker --app module:name")
    if "unable" in each.states:
        yield warning(
            "workers", f"the workers of {each.name} do not know all its event types", "deploy the code that does"
        )
    if "breaker" in each.states:
        again = f"outrider subscription resume {each.name} closes it at once"
        if failing is None:
            told, advice = "all its events fail", f"its workers' logs say why; {again}"
        else:
            told = f"all its events fail, last with {failing.code}: {failing.message}"
            advice = f"outrider event show {failing.event_id} says more; when the cause is gone, {again}"
        yield warning("workers", f"the breaker of {each.name} is open: {told}", advice)


def _of_generations(each: Standing, found: Status) -> Iterator[Finding]:
    """Orphaned: its own workers are gone. Those of others adopt it, if there are any that are not strict."""
    served = any(worker.serves(each.name) for worker in found.workers)
    for place in each.positions:
        own = any(worker.serves(each.name) and worker.generation == place.served_by for worker in found.workers)
        if not place.generation or own or each.kind == "reader":
            continue
        behind = counted(place.lag, "log position")
        told = f"generation {place.generation} of {each.name} has no worker of its own, and is {behind} behind"
        if place.workers:
            yield note(
                "generations", f"{told}; others serve it", "no action: it is folded when it has nothing left to read"
            )
        elif not served:  # else see judge_unserved
            yield warning(
                "generations", f"{told}; nobody serves it", "start a worker, of any generation: it adopts what is left"
            )


def judge_unserved(unserved: Sequence[Unserved]) -> Iterator[Finding]:
    for each in unserved[:SHOWN]:
        yield warning(
            "generations",
            f"{each.subscription}: {counted(each.waiting, each.kind, MOST)} of generation {each.generation} "
            f"{'waits' if each.waiting == 1 else 'wait'}, and no worker takes them: those that run are strict and of other "
            "generations",
            f"start a worker of generation {each.generation}, or let others handle them: outrider generations move "
            f"{each.generation} {each.to} --subscription {each.subscription}",
        )
    yield from more("generations", len(unserved) - SHOWN)


def _listening(found: Status, polls: bool) -> Iterator[Finding]:
    deaf = [each for each in found.workers if each.live and not each.listening]
    if polls and deaf:
        yield ok("workers", f"{found.live} at work, {len(deaf)} of them poll")
    elif any(found.read_at - each.started_at > STARTING for each in deaf):
        yield warning(
            "workers",
            f"{len(deaf)} of {counted(found.live, 'worker')} {'polls' if len(deaf) == 1 else 'poll'}, because no "
            "notifications arrive",
            "see listener; their logs say why (listener_down)",
        )
    elif deaf:
        yield ok("workers", f"{found.live} at work, {len(deaf)} of them just started")
    elif found.live:
        yield ok("workers", f"{found.live} at work, all woken by notifications")
