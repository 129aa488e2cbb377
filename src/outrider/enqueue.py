"""Enqueue: one insert on the caller's connection, in the caller's transaction.

Never commits or opens a connection. What cannot be stored is refused before the insert.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import datetime
from enum import Enum
from functools import partial
from typing import Any, Literal, TypedDict, Unpack, get_args
from uuid import UUID

from outrider import names
from outrider.config import Settings
from outrider.envelope import inherited_cause, inherited_workspace
from outrider.errors import ConfigError, EnqueueRefused, PublishRefused
from outrider.ids import uuid7, uuid7s
from outrider.job import Job
from outrider.payload import encode
from outrider.postgres.inserts import Driver
from outrider.postgres.job_inserts import Enqueue, Enqueued, Request, Terms
from outrider.postgres.notifier import Notifier
from outrider.publish import FindDriver
from outrider.registry import EventSpec
from outrider.retry import Duration, parse_duration
from outrider.signals import JobEnqueued, Signals
from outrider.trace import Carrier, TracedMessage, current_trace, sending

OnConflict = Literal["keep", "replace", "debounce"]
ON_CONFLICT = get_args(OnConflict)
UNIQUE_BYTES = 512
MOST_PRIORITY = 100
DEFAULT_QUEUE = "default"


class EnqueueOptions(TypedDict, total=False):
    run_at: datetime | None
    """The earliest time to run it. Default: now, by the database's clock."""
    delay: Duration | None
    """The same as a duration from now, by the database's clock. Excludes run_at."""
    priority: int
    """-100 to 100, higher runs sooner: each step equals one minute of waiting. Default: 0."""
    unique_key: str | None
    """At most one pending job of its type has this key."""
    on_conflict: OnConflict
    """If a pending job has the unique key: keep it (the default), replace it, or debounce (replace and postpone it)."""
    queue: str
    """A worker can serve some queues only. Default: "default"."""
    key: str | None
    """The key that key_concurrency counts. Default: the field that the job class names as its key."""
    workspace_id: str | None
    """The tenant. Default: that of the event or job being handled, if any. None = no tenant."""


OPTIONS = frozenset(EnqueueOptions.__annotations__)


class Enqueuer:
    """Turns jobs into requests, with the settings of one app, and inserts them."""

    def __init__(self, settings: Settings, signals: Signals, driver_of: FindDriver, notifier: Notifier) -> None:
        self._settings = settings
        self._signals = signals
        self._driver_of = driver_of
        self._notifier = notifier

    def request(self, job: Job, **options: Unpack[EnqueueOptions]) -> Request:
        """The request for one job. Raises EnqueueRefused if it cannot be stored."""
        return self._requests([job], [uuid7()], options)[0]

    def requests(self, jobs: Iterable[Job], options: EnqueueOptions) -> list[Request]:
        if isinstance(jobs, Job):
            raise TypeError("enqueue_many takes several jobs, not one: use enqueue, or a list")
        if options.get("unique_key") is not None:
            raise TypeError("enqueue_many gives all jobs the same options, and a unique_key is for one: use enqueue")
        jobs = list(jobs)
        return self._requests(jobs, uuid7s(len(jobs)), options) if jobs else []

    def _requests(self, jobs: Sequence[Job], ids: Sequence[UUID], options: EnqueueOptions) -> list[Request]:
        if options and (wrong := names.unknown_option("enqueue", options, OPTIONS)):
            raise TypeError(wrong)
        trace, same_key, limit = current_trace(), options.get("key"), self._settings.payload_limit
        terms: Terms | None = None
        requests = []
        for job, job_id in zip(jobs, ids, strict=True):
            spec = _spec_of(job)
            try:
                payload = encode(job, spec.type, limit)
            except PublishRefused as refused:
                raise EnqueueRefused(refused.event_type, refused.field, refused.rule) from refused.__cause__
            key = same_key
            if key is None and spec.key is not None:
                value = getattr(job, spec.key)
                value = value.value if isinstance(value, Enum) else value
                key = None if value is None else str(value)
            if key is not None and (wrong := names.wrong_text(key, names.KEY_BYTES)):
                raise EnqueueRefused(spec.type, "key", wrong)
            terms = terms or self._terms(spec.type, options)
            requests.append(Request(job_id, spec.type, spec.version, payload, key, trace, terms))
        return requests

    def _terms(self, job_type: str, options: EnqueueOptions) -> Terms:
        """What the options say. Raises EnqueueRefused, in the name of the first job."""
        run_at, priority = options.get("run_at"), options.get("priority", 0)
        queue, unique_key = options.get("queue", DEFAULT_QUEUE), options.get("unique_key")
        on_conflict = options.get("on_conflict", "keep")
        workspace_id = options["workspace_id"] if "workspace_id" in options else inherited_workspace.get()
        for field, text, limit in (
            ("unique_key", unique_key, UNIQUE_BYTES),
            ("workspace_id", workspace_id, names.WORKSPACE_BYTES),
        ):
            if text is not None and (wrong := names.wrong_text(text, limit)):
                raise EnqueueRefused(job_type, field, wrong)
        if queue != DEFAULT_QUEUE and (wrong := names.wrong_word(queue)):
            raise EnqueueRefused(job_type, "queue", wrong)
        if type(priority) is not int or abs(priority) > MOST_PRIORITY:
            raise EnqueueRefused(job_type, "priority", f"{priority!r} is not a whole number from -100 to 100")
        if on_conflict not in ON_CONFLICT:
            known = ", ".join(ON_CONFLICT)
            raise EnqueueRefused(job_type, "on_conflict", f"{on_conflict!r} is none of {known}")
        if on_conflict != "keep" and unique_key is None:
            raise EnqueueRefused(job_type, "on_conflict", "needs a unique_key")
        if run_at is not None and (wrong := names.wrong_time(run_at)):
            raise EnqueueRefused(job_type, "run_at", wrong)
        return Terms(
            source=self._settings.context,
            generation=self._settings.generation,
            run_at=run_at,
            delay=_seconds(job_type, options.get("delay"), run_at),
            priority=priority,
            queue=queue,
            unique_key=unique_key,
            on_conflict=on_conflict,
            workspace_id=workspace_id,
            caused_by=_cause(),
        )

    async def insert(self, conn: object, requests: Sequence[Request]) -> list[Enqueued]:
        driver = self._driver_of(conn, blocking=False, verb="enqueue")
        assert driver.run is not None
        if not requests:
            return []
        with sending("enqueue", map(_message, requests)) as carried:
            insert = self._insert(requests, carried)
            written = insert.written(await driver.run(conn, insert))
        return self._announce(conn, driver, insert.requests, written)

    def insert_sync(self, conn: object, requests: Sequence[Request]) -> list[Enqueued]:
        driver = self._driver_of(conn, blocking=True, verb="enqueue")
        assert driver.run_sync is not None
        if not requests:
            return []
        with sending("enqueue", map(_message, requests)) as carried:
            insert = self._insert(requests, carried)
            written = insert.written(driver.run_sync(conn, insert))
        return self._announce(conn, driver, insert.requests, written)

    def _insert(self, requests: Sequence[Request], carried: Sequence[Carrier] | None) -> Enqueue:
        if carried is not None:
            pairs = zip(requests, carried, strict=True)
            requests = [replace(each, trace_context=carrier) for each, carrier in pairs]
        return Enqueue.of(requests, self._settings.schema, notify=self._settings.notify == "commit")

    def _announce(
        self, conn: object, driver: Driver, requests: Sequence[Request], written: list[Enqueued]
    ) -> list[Enqueued]:
        if self._settings.notify == "after_commit" and driver.after_commit is not None:
            channel = names.channel_of(self._settings.generation)
            wakeups = {(channel, each.job_type) for each in written}
            driver.after_commit(conn, lambda: self._notifier.notify(wakeups))
        signals = (
            JobEnqueued(each.job_type, each.id, each.outcome, partial(asked.envelope, each.id))
            for each, asked in zip(written, requests, strict=True)
        )
        self._signals.emit_all(JobEnqueued, signals)
        return written


def _cause() -> UUID | None:
    cause = inherited_cause.get()
    return UUID(bytes=cause) if isinstance(cause, bytes) else cause


def _message(request: Request) -> TracedMessage:
    return TracedMessage(request.id, request.job_type, request.trace_context)


def _spec_of(job: Any) -> EventSpec:
    if Job not in type(job).__mro__:  # isinstance costs more: pydantic answers it
        found = job.__name__ if isinstance(job, type) else type(job).__name__
        raise EnqueueRefused(found, "job", "is not an instance of a Job class")
    spec: EventSpec | None = type(job).__outrider__
    if spec is None:
        rule = 'is not registered: declare it as class X(Job, type="a.b")'
        raise EnqueueRefused(type(job).__name__, "job", rule)
    return spec


def _seconds(job_type: str, delay: Duration | None, run_at: datetime | None) -> float | None:
    if delay is None:
        return None
    if run_at is not None:
        raise EnqueueRefused(job_type, "delay", "excludes run_at: give one of them")
    try:
        return parse_duration(delay).total_seconds()
    except ConfigError as wrong:
        raise EnqueueRefused(job_type, "delay", str(wrong)) from None
