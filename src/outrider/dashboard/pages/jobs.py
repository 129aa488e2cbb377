"""Jobs that run, wait or have failed; one job in full. Cancel, run now and retry: one, or all that match, with a preview."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import Response

from outrider.dashboard.confidential import field_names, is_hidden, shown_classes, without_values
from outrider.dashboard.pages.inputs import begin, counted, need, number_of, position, reason_of, uuid_of, wanted
from outrider.dashboard.rendering import page
from outrider.dashboard.runs import Run
from outrider.errors import ConfigError, NoSuchJob
from outrider.postgres import content_classes
from outrider.postgres.admin import bulk_jobs, jobs
from outrider.postgres.admin.bulk_jobs import BulkVerb, JobFilter, JobsDone
from outrider.postgres.admin.jobs import JobRow
from outrider.postgres.admin.tenants import refuse_hidden
from outrider.postgres.connection import AsyncSession

if TYPE_CHECKING:
    from outrider.dashboard.site import Dashboard

FIELDS = ("type", "queue", "key", "tenant", "state", "payload")
LISTED = 100
SECONDS = 2.0
"""A search, or the count of a preview, begins no page after this time."""
COUNTED = 1_000_000
"""Jobs that a preview reads at most."""
VERBS: dict[BulkVerb, tuple[str, str]] = {
    "cancel": ("Cancel", "cancel"),
    "run_now": ("Run now", "run_now"),
    "retry": ("Retry", "replay"),
}
"""The title of each action on all that match, and the permission that it needs."""
DONE: dict[BulkVerb, str] = {"cancel": "cancelled", "run_now": "made due", "retry": "pending again"}
STATES = ("running", "pending", "failed", "cancelled", "done")
OUTCOMES = {
    "cancelled": "cancelled",
    "cancelling": "its worker stops it",
    "due": "it runs as soon as a worker is free",
    "running": "it runs already",
    "dead": "it is a dead letter: replay it instead",
    "done": "it is done",
    "not_found": "no trace of it is kept",
}
ACTED = {"cancel": ("cancelled", "cancelling"), "run_now": ("due",)}
"""Outcomes of an action that did something."""


async def show(board: Dashboard, request: Request) -> Response:
    given, after = _given(request.query_params), position(request, "after")
    state, schema = given.get("state"), board.database.schema
    if state is not None and state not in STATES:
        raise ConfigError(f"state: one of {', '.join(STATES)}")
    which = _filter(board, given, jobs.OWED if state is None else (state,)) if state != "done" else JobFilter()
    if state == "done" and given.keys() & {"key", "tenant", "payload"}:
        raise ConfigError("Finished jobs cannot be searched by key, tenant or payload: their receipts have none.")
    async with board.database.reading() as conn:
        # To list the jobs of a queue that has few, all the others would be read.
        if which.needs_search or which.queue is not None or (after is not None and state != "done"):
            found = await jobs.searched(conn, which, schema, after=after or 0, limit=LISTED, seconds=SECONDS)
        else:
            states = jobs.OWED if state is None else (state,)
            found = await jobs.listing(
                conn, schema, name=given.get("type"), queue=given.get("queue"), states=states, limit=LISTED
            )
        secret = await _hidden(board, conn, found.jobs)
        found = replace(found, jobs=[_without_values(each) if each.seq in secret else each for each in found.jobs])
    if found.searched is None and len(found.jobs) == LISTED and state != "done":
        found = replace(found, place=0)  # these are the first by state: a search by id lists all
    following = None if found.place is None else urlencode(given | {"after": found.place})
    verbs = [
        (verb, VERBS[verb][0])
        for verb, possible in bulk_jobs.POSSIBLE.items()
        if (state is None or state in possible) and board.access.may(request.state.user, VERBS[verb][1])
    ]
    return await page(
        board, request, "jobs.html", "jobs", found=found, given=given, query=urlencode(given), states=STATES,
        listed=LISTED, following=following, after=after, verbs=verbs,
    )  # fmt: skip


async def show_one(board: Dashboard, request: Request) -> Response:
    job_id, schema = uuid_of(request.path_params["id"]), board.database.schema
    async with board.database.reading() as conn:
        found = await jobs.whole(conn, job_id, schema)
        secret = await _hidden(board, conn, found.jobs)
    if not found.jobs:
        raise NoSuchJob(job_id, schema)
    found = replace(found, jobs=[_without_values(each) if each.seq in secret else each for each in found.jobs])
    return await page(board, request, "job.html", "jobs", found=found, hidden=bool(secret))


async def _hidden(board: Dashboard, conn: AsyncSession, found: Sequence[JobRow]) -> set[int]:
    """The log positions of jobs of events whose values are hidden. A job that was enqueued has no content class."""
    seqs = {each.seq for each in found if each.seq is not None}
    added = await content_classes.allowed(conn, board.database.schema) if seqs else {}
    known = await content_classes.of_events(conn, board.database.schema, sorted(seqs))
    return {seq for seq in seqs if is_hidden(known.get(seq, ""), board.values_up_to, added)}


def _without_values(each: JobRow) -> JobRow:
    """What a job reports and returns is made of its payload."""
    return replace(
        each,
        payload=each.payload and without_values(each.payload),
        progress=field_names(each.progress) if each.progress else each.progress,
        result=None if each.result is None else field_names(each.result),
    )


async def preview(board: Dashboard, request: Request) -> Response:
    """How many there are, before anything is done."""
    verb = _verb(wanted(request, "verb"))
    need(board, request, VERBS[verb][1])
    given = _given(request.query_params)
    which = _filter(board, given, (given["state"],) if "state" in given else ()).acted_on(verb)
    schema = board.database.schema
    async with board.database.reading() as conn:
        until = await bulk_jobs.newest(conn, schema)
        count = await bulk_jobs.count(conn, which, schema, until=until, most=COUNTED, seconds=SECONDS)
    return await page(
        board, request, "jobs_act.html", "jobs", given=given, query=urlencode(given), verb=verb, count=count,
        states=which.states, word=VERBS[verb][0], until=until,
    )  # fmt: skip


async def act(board: Dashboard, request: Request) -> Response:
    form, schema = request.state.form, board.database.schema
    verb = _verb(form.get("verb"))
    permission = VERBS[verb][1]
    user, reason, given = need(board, request, permission), reason_of(request), _given(counted(request))
    which = _filter(board, given, (given["state"],) if "state" in given else ()).acted_on(verb)
    back = f"/jobs?{urlencode(given)}" if given else "/jobs"
    total, until = number_of(form.get("jobs", "")), number_of(form.get("until", ""))
    run = Run(permission, f"{VERBS[verb][0]}: jobs", user.name, reason, back, total=total, in_chunks=True)

    async def perform(conn: AsyncSession, run: Run) -> None:
        def progress(done: JobsDone) -> None:
            run.done = done.jobs

        await refuse_hidden(conn, schema)
        done = await bulk_jobs.act(
            conn, verb, which, schema, by=run.by, reason=run.reason, until=until, on_progress=progress, stop=run.stop
        )
        run.done, run.acted, run.stopped = done.jobs, bool(done.changed or done.stopping), done.stopped
        run.lines += told(verb, done)

    return await begin(board, request, run, perform)


def told(verb: BulkVerb, done: JobsDone) -> list[str]:
    counts = (
        (done.changed, DONE[verb]),
        (done.stopping, "running: their workers stop them"),
        (done.skipped, "skipped: there was nothing to do"),
        (done.held, "left alone: other transactions have locked them. Try again later"),
    )
    return [f"{number:,} {what}" for number, what in counts if number]


def _given(fields: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name in FIELDS if (value := fields.get(name, "").strip())}


def _filter(board: Dashboard, given: Mapping[str, str], states: Sequence[str]) -> JobFilter:
    payload = {}
    for each in given.get("payload", "").split(";"):
        path, sign, value = each.strip().partition("=")
        if each.strip() and not sign:
            raise ConfigError(f"payload: {each.strip():.60} is not like order_id=7; several are separated by ;")
        if path:
            payload[path.strip()] = value.strip()
    return JobFilter(
        given.get("type"), given.get("queue"), given.get("key"), given.get("tenant"), tuple(states), payload,
        classes=shown_classes(board.values_up_to, {}),  # of added classes no value is compared
    )  # fmt: skip


def _verb(text: str | None) -> BulkVerb:
    for verb in VERBS:
        if verb == text:
            return verb
    raise ConfigError(f"a form says one of {', '.join(VERBS)}")


async def cancel(board: Dashboard, request: Request) -> Response:
    return await _change(board, request, "cancel")


async def run_now(board: Dashboard, request: Request) -> Response:
    return await _change(board, request, "run_now")


async def _change(board: Dashboard, request: Request, action: str) -> Response:
    user, reason = need(board, request, action), reason_of(request)
    job_id, schema = uuid_of(request.path_params["id"]), board.database.schema
    title = f"{action.replace('_', ' ').capitalize()}: job {job_id}"
    run = Run(action, title, user.name, reason, f"/jobs/{job_id}")

    async def act(conn: AsyncSession, run: Run) -> None:
        change = jobs.cancel if action == "cancel" else jobs.run_now
        outcomes = await change(conn, job_id, schema, by=run.by, reason=run.reason)
        run.lines += [f"{each.subscription or job_id}: {OUTCOMES.get(each.outcome, each.outcome)}" for each in outcomes]
        run.acted = any(each.outcome in ACTED[action] for each in outcomes)

    return await begin(board, request, run, act)
