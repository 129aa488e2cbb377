"""A declared job: what it is called for, how, and within which limits."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, ClassVar, Literal, TypedDict

from outrider.errors import DeclarationError
from outrider.event import Declared, Event, spec_of
from outrider.job import Job
from outrider.options import Declaration, a_function, one_of, option, optional, policy, seconds, whole, word
from outrider.outcome import Classifier
from outrider.retry import DEFAULT_RETRY_POLICY, Duration, Policy, option_duration
from outrider.subscription import Limits, Start, Subscription
from outrider.worker.annotations import annotation, refuse_unfit
from outrider.worker.handler import is_async, positional, refuse_uncallable, second_is_no
from outrider.worker.job_context import JobContext, SyncJobContext

SHORTEST_LEASE = timedelta(seconds=1)
OF_EVENTS = ("start", "queue", "priority")
"""Options of jobs that are made of events (on=). For other jobs, enqueue() takes queue and priority."""

Executor = Literal["auto", "process"]


class JobOptions(TypedDict, total=False):
    """The keyword arguments of app.job. `JobHandler` explains them."""

    lease: Duration
    timeout: Duration | None
    retry: Policy
    classify: Classifier | None
    concurrency: int | None
    key_concurrency: int | None
    executor: Executor
    keep: Duration | None
    start: Start
    queue: str
    priority: int


def _lease(whose: str, option: str, value: Any) -> timedelta:
    lease = option_duration(option, value, whose)
    if lease < SHORTEST_LEASE:
        raise DeclarationError(f"{whose}: lease={lease} is shorter than a second: it could not be renewed in time")
    return lease


@dataclass(frozen=True, kw_only=True)
class JobHandler(Declaration):
    kind: ClassVar = "a job"

    context: str
    events: tuple[type[Event], ...]
    """The events that become jobs (on=); empty for a job that is enqueued."""
    models: dict[str, type[Declared]]
    """The job class, or the event classes that become jobs, by type."""
    call: Callable[[Any, Any], Any]
    """(job or event, context)"""
    function: Callable[..., Any]
    """As it was declared."""
    blocking: bool
    """It runs in a thread, with a SyncJobContext."""

    lease: timedelta = option("5m", _lease)
    """How long a job belongs to its worker without a renewal. A side process renews it while the job runs."""
    timeout: float | None = option(None, optional(seconds))
    """How long one attempt may take. None = as long as it needs."""
    retry: Policy = option(DEFAULT_RETRY_POLICY, policy)
    """When a failed job is tried again, and when it becomes a dead letter."""
    classify: Classifier | None = option(None, optional(a_function))
    """A function that gets an error of the job and returns what it counts as: Bury("why"), Retry(), Snooze("1m") or
    another exception. None = the error counts as it is."""
    concurrency: int | None = option(None, optional(whole(1, 2**31 - 1)))
    """How many of these jobs run at the same time, over all workers. None = as many as the workers have slots."""
    key_concurrency: int | None = option(None, optional(whole(1, 2**31 - 1)))
    """How many with the same key run at the same time, over all workers. None = no limit."""
    executor: Executor = option("auto", one_of(Executor))
    """"auto": on the event loop, or in a thread; "process": in a process of its own, for work that keeps a CPU busy."""
    keep: float | None = option(None, optional(seconds))
    """Every finished job leaves a receipt, which stays at least this long. None = only where one is needed anyway: the job
    came from an event, returned a result or failed before."""
    start: Start = option("now")
    """Where a new job of events (on=) starts: "now", "beginning" or a time."""
    queue: str = option("default", word)
    """The queue of jobs that are made of events (on=)."""
    priority: int = option(0, whole(-100, 100))
    """The priority of jobs that are made of events (on=). Higher runs first."""

    limits: Limits = field(init=False)
    subscription: Subscription = field(init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.executor == "process" and (wrong := _unfindable(self.function)):
            raise DeclarationError(f"{self.name}: executor='process' {wrong}")
        timeout, keep = (None if each is None else timedelta(seconds=each) for each in (self.timeout, self.keep))
        limits = Limits(self.lease, timeout, self.concurrency, self.key_concurrency, keep)
        object.__setattr__(self, "limits", limits)
        subscription = Subscription(
            self.name, "job", self.context, self.events, start=self.start, order="none", limits=limits
        )
        object.__setattr__(self, "subscription", subscription)

    @property
    def limited(self) -> bool:
        """How many of these jobs run at the same time is limited."""
        return self.concurrency is not None or self.key_concurrency is not None


def declare_job(
    context: str, job: type[Job] | None, on: tuple[type[Event], ...], name: str, function: Any, options: JobOptions
) -> JobHandler:
    refuse_uncallable(name, "job", function)
    if job is not None and (events_only := options.keys() & {*OF_EVENTS}):
        raise DeclarationError(
            f"{name}: {', '.join(sorted(events_only))} is for jobs of events (on=); enqueue() takes queue and priority"
        )
    models: dict[str, type[Declared]] = {} if job is None else {spec_of(job).type: job}
    for model in on:
        if models.setdefault(spec_of(model).type, model) is not model:
            raise DeclarationError(f"{name}: two classes are both {spec_of(model).type}: name the newest one")
    refuse_unfit(name, "job", annotation(function, 0), models.values())
    return JobHandler.declare(
        options,
        name=name,
        context=context,
        events=on,
        models=models,
        call=_with_context(name, function),
        function=function,
        blocking=not is_async(function),
    )


def _with_context(name: str, function: Callable[..., Any]) -> Callable[[Any, Any], Any]:
    """Jobs may leave out the context."""
    match positional(function):
        case 2:
            if (wrong := second_is_no(function, JobContext, SyncJobContext)) is not None:
                raise DeclarationError(f"{name}: the second parameter of a job is its context, not {wrong}")
            return function
        case 1:
            return lambda job, _: function(job)
        case _:
            raise DeclarationError(f"{name}: a job takes (job, ctx) or (job), not {inspect.signature(function)}")


def _unfindable(function: Any) -> str | None:
    """Why another process could not import the function by its name; None if it can."""
    name = getattr(function, "__qualname__", None)
    if name is None or "<locals>" in name or "<lambda>" in name:
        return "needs a function at the top of a module, which its process can import"
    if function.__module__ == "__main__":
        return f"cannot import from the script that was started: move {name} into a module of its own, and import that"
    return None
