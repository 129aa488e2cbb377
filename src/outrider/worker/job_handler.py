"""A declared job: what it is called for, how, and within which limits."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal, TypedDict, get_args

from outrider import names
from outrider.errors import DeclarationError
from outrider.event import Declared, Event, spec_of
from outrider.job import Job
from outrider.retry import DEFAULT_RETRY_POLICY, Duration, Policy, option_duration
from outrider.subscription import Limits, Start, Subscription
from outrider.worker.annotations import annotation, refuse_unfit
from outrider.worker.handler import is_async, positional, second_is_no
from outrider.worker.job_context import JobContext, SyncJobContext

LEASE = timedelta(minutes=5)
SHORTEST_LEASE = timedelta(seconds=1)

Executor = Literal["auto", "process"]


class JobOptions(TypedDict, total=False):
    lease: Duration
    """How long a job belongs to its worker without a renewal. A side process renews it while the job runs. Default 5 min."""
    timeout: Duration | None
    """How long one attempt may take. Default: as long as it needs."""
    retry: Policy
    """When a failed job is tried again, and when it is buried. Default: DEFAULT_RETRY_POLICY."""
    concurrency: int | None
    """How many of these jobs run at the same time, over all workers. Default: as many as the workers have slots."""
    key_concurrency: int | None
    """How many with the same key run at the same time, over all workers. Default: no limit."""
    executor: Executor
    """"process": in a process of its own, for work that keeps a CPU busy. Default: on the event loop, or in a thread."""
    start: Start
    """For a new job of events (on=): "now" (the default), "beginning" or a time."""
    queue: str
    """Of the jobs that events become (on=). Default "default"."""
    priority: int
    """Of the jobs that events become (on=). Default 0."""


@dataclass(frozen=True, slots=True)
class JobHandler:
    subscription: Subscription
    call: Callable[[Any, Any], Any]
    """(job or event, context)"""
    function: Callable[..., Any]
    """As it was declared."""
    blocking: bool
    """It runs in a thread, with a SyncJobContext."""
    executor: Executor
    policy: Policy
    limits: Limits
    models: dict[str, type[Declared]]
    """By type: one job, or the events that become jobs."""
    queue: str
    priority: int

    @property
    def name(self) -> str:
        return self.subscription.name

    @property
    def limited(self) -> bool:
        """How many of them run at the same time is limited."""
        return self.limits.concurrency is not None or self.limits.key_concurrency is not None

    @property
    def timeout(self) -> float | None:
        return None if self.limits.timeout is None else self.limits.timeout.total_seconds()


def declare_job(
    context: str, job: type[Job] | None, on: tuple[type[Event], ...], name: str, function: Any, options: JobOptions
) -> JobHandler:
    if wrong := names.unknown_option("a job", options, JobOptions.__annotations__):
        raise TypeError(wrong)
    if not callable(function):
        raise DeclarationError(f"{name}: {function!r} is not callable")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise DeclarationError(f"{name}: a job with a yield would never run: remove the yield")
    if job is not None and (events_only := options.keys() & {"start", "queue", "priority"}):
        raise DeclarationError(
            f"{name}: {', '.join(sorted(events_only))} is for jobs of events (on=); enqueue() takes queue and priority"
        )
    retry, executor = options.get("retry"), options.get("executor", "auto")
    if retry is not None and not callable(getattr(retry, "delay", None)):
        raise DeclarationError(
            f"{name}: retry={retry!r} is not a policy: pass RetryPolicy(retries=...) or Backoff.table(...)"
        )
    if executor not in get_args(Executor):
        raise DeclarationError(f"{name}: executor={executor!r} is neither 'auto' nor 'process'")
    if executor == "process" and (wrong := _unfindable(function)):
        raise DeclarationError(f"{name}: executor='process' {wrong}")
    queue, priority = options.get("queue", "default"), options.get("priority", 0)
    if wrong := names.wrong_word(queue):
        raise DeclarationError(f"{name}: queue: {wrong}")
    if type(priority) is not int or abs(priority) > 100:
        raise DeclarationError(f"{name}: priority={priority!r} is not a whole number from -100 to 100")
    models: dict[str, type[Declared]] = {} if job is None else {spec_of(job).type: job}
    for model in on:
        if models.setdefault(spec_of(model).type, model) is not model:
            raise DeclarationError(f"{name}: two classes are both {spec_of(model).type}: name the newest one")
    refuse_unfit(name, "job", annotation(function, 0), models.values())
    limits = _limits(name, options)
    return JobHandler(
        subscription=Subscription(
            name, "job", context, on, start=options.get("start", "now"), order="none", limits=limits
        ),
        call=_with_context(name, function),
        function=function,
        blocking=not is_async(function),
        executor=executor,
        policy=retry or DEFAULT_RETRY_POLICY,
        limits=limits,
        models=models,
        queue=queue,
        priority=priority,
    )


def _limits(name: str, options: JobOptions) -> Limits:
    lease, timeout = option_duration("lease", options.get("lease", LEASE), name), options.get("timeout")
    if lease < SHORTEST_LEASE:
        raise DeclarationError(f"{name}: lease={lease} is shorter than a second: it could not be renewed in time")
    counts: dict[str, int | None] = {}
    for field in ("concurrency", "key_concurrency"):
        counts[field] = count = options.get(field)  # type: ignore[assignment]
        if count is not None and (type(count) is not int or not 1 <= count < 2**31):
            raise DeclarationError(f"{name}: {field}={count!r} is not a whole number from 1 on")
    limit = None if timeout is None else option_duration("timeout", timeout, name)
    if limit is not None and not limit:
        raise DeclarationError(f"{name}: timeout is zero")
    return Limits(lease, limit, counts["concurrency"], counts["key_concurrency"])


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
    """A process of its own finds the function by its name."""
    name = getattr(function, "__qualname__", None)
    if name is None or "<locals>" in name or "<lambda>" in name:
        return "needs a function at the top of a module, which its process can import"
    if function.__module__ == "__main__":
        return f"cannot import from the script that was started: move {name} into a module of its own, and import that"
    return None
