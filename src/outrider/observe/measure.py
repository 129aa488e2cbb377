"""From signals to metrics: what each signal adds to which metric. The instruments know where the numbers go."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Protocol, TypeVar

from outrider.observe import vocabulary as of
from outrider.observe.vocabulary import KEPT, OTHER, Metric
from outrider.outcome import Dead
from outrider.postgres.admin.diagnostics import Server, Tuples
from outrider.postgres.admin.status import RelayTopics, Standing, Status
from outrider.postgres.rollups import Rolling
from outrider.signals import (
    BrokerDown,
    BrokerUp,
    EntryRefused,
    Failed,
    Ingested,
    JobEnqueued,
    JobFailed,
    JobsClaimed,
    JobsCompleted,
    LeaseLost,
    LeasesRenewed,
    ListenerDown,
    ListenerUp,
    Notified,
    Published,
    Rejection,
    Relayed,
    RelayLease,
    RolledUp,
    Settled,
    Signal,
    Signals,
    Troubled,
    Upkept,
    Woken,
)

T = TypeVar("T", Standing, Rolling)


class Instruments(Protocol):
    def add(self, metric: Metric, amount: float, *labels: str) -> None: ...

    def set(self, metric: Metric, value: float, *labels: str) -> None: ...

    def observe(self, metric: Metric, values: Sequence[float], *labels: str) -> None: ...

    def replace(self, metric: Metric, values: Mapping[tuple[str, ...], float]) -> None:
        """Set all values of a gauge: labels that are not among them disappear."""
        ...


class _Bounded:
    """Bounds the number of label values that come from outside: each series costs memory here and in Prometheus."""

    def __init__(self, instruments: Instruments) -> None:
        self._to = instruments
        self._seen: defaultdict[tuple[str, str], set[str]] = defaultdict(set)

    def add(self, metric: Metric, amount: float, *labels: str) -> None:
        self._to.add(metric, amount, *self._known(metric, labels))

    def set(self, metric: Metric, value: float, *labels: str) -> None:
        """One gauge cannot stand for many things: values beyond the bound get no gauge."""
        if self._known(metric, labels) == labels:
            self._to.set(metric, value, *labels)

    def observe(self, metric: Metric, values: Sequence[float], *labels: str) -> None:
        self._to.observe(metric, values, *self._known(metric, labels))

    def _known(self, metric: Metric, labels: tuple[str, ...]) -> tuple[str, ...]:
        if not metric.foreign:
            return labels
        named = zip(metric.labels, labels, strict=True)
        return tuple(self._kept(metric, *each) if each[0] in metric.foreign else each[1] for each in named)

    def _kept(self, metric: Metric, label: str, value: str) -> str:
        seen = self._seen[metric.name, label]
        if value not in seen:
            if len(seen) >= KEPT:
                return OTHER
            seen.add(value)
        return value


class Measuring:
    def __init__(self, signals: Signals, instruments: Instruments) -> None:
        self._to = _Bounded(instruments)
        self.close: Callable[[], None] = signals.listen(self._hear)
        """Stop listening."""

    def _hear(self, signal: Signal) -> None:
        to = self._to
        match signal:
            case Published(envelope):
                to.add(of.published, 1, envelope.event_type)
            case Settled(subscription, _, events, _, _, _, times) if events:
                self._hear_settled(subscription, list(times()))
                to.add(of.completed, events, subscription, "success")
            case Failed(subscription, _, _, duration_ms, verdict, _):
                to.observe(of.handling, [duration_ms / 1000], subscription)
                to.add(of.completed, 1, subscription, "dead" if isinstance(verdict, Dead) else "failed")
            case Troubled(subscription, _, _, _, _):
                to.add(of.troubled, 1, subscription)
            case JobEnqueued() | JobsClaimed() | JobsCompleted() | JobFailed() | LeaseLost() | LeasesRenewed():
                self._hear_jobs(signal)
            case Notified(channel, _):
                to.add(of.notifications, 1, channel)
            case Woken(_, "poll"):
                to.add(of.polls, 1)
            case ListenerUp():
                to.set(of.listener_up, 1)
            case ListenerDown():
                to.set(of.listener_up, 0)
            case RolledUp(rollup, groups, pieces, _, set_aside, _, failed, _):
                to.add(of.rolled_up, groups, rollup, "rollup")
                to.add(of.rolled_up, pieces, rollup, "single")
                if failed or set_aside:
                    to.add(of.rollup_errors, 1, rollup)
            case Upkept(action, _, _, _):
                to.add(of.upkept, 1, action)
            case Relayed() | Rejection() | RelayLease() | Ingested() | EntryRefused() | BrokerDown() | BrokerUp():
                self._hear_streams(signal)
            case _:
                pass

    def _hear_settled(self, subscription: str, times: Sequence[tuple[str, float, float]]) -> None:
        """One observation per batch and type: at tens of thousands of events a second the difference is measurable."""
        ages: defaultdict[str, list[float]] = defaultdict(list)
        for kind, age, _ in times:
            ages[kind].append(age if age > 0 else 0.0)
        for kind, those in ages.items():
            self._to.observe(of.settled, those, kind, subscription)
        self._to.observe(of.handling, [took for _, _, took in times], subscription)

    def _hear_jobs(
        self, signal: JobEnqueued | JobsClaimed | JobsCompleted | JobFailed | LeaseLost | LeasesRenewed
    ) -> None:
        to = self._to
        match signal:
            case JobEnqueued(job_type, _, _, _):
                to.add(of.enqueued, 1, job_type)
            case JobsClaimed(_, details):
                for (name, worker), jobs in Counter((run.subscription, run.worker) for run in details()).items():
                    to.add(of.claimed, jobs, name, worker)
            case JobsCompleted(_, details):
                took: defaultdict[str, list[float]] = defaultdict(list)
                for run, took_ms in details():
                    took[run.subscription].append(took_ms / 1000)
                for name, seconds in took.items():
                    to.observe(of.handling, seconds, name)
                    to.add(of.completed, len(seconds), name, "success")
            case JobFailed(run, duration_ms, _, _, outcome, _):
                to.observe(of.handling, [duration_ms / 1000], run.subscription)
                to.add(of.completed, 1, run.subscription, "dead" if outcome == "buried" else "failed")
            case LeaseLost():
                to.add(of.renewals, 1, "lost")
            case LeasesRenewed(leases):
                to.add(of.renewals, leases, "renewed")

    def _hear_streams(
        self, signal: Relayed | Rejection | RelayLease | Ingested | EntryRefused | BrokerDown | BrokerUp
    ) -> None:
        to = self._to
        match signal:
            case Relayed(relay, stream, _, position, topics):
                for topic, events in topics.items():
                    to.add(of.relayed, events, relay, topic)
                to.set(of.broker_up, 1, relay)
                with suppress(ValueError):
                    milliseconds, _, number = position.partition("-")
                    to.set(of.hwm, int(milliseconds), stream)
                    to.set(of.hwm_number, int(number or 0), stream)
            case RelayLease(relay, result):
                to.add(of.relay_leases, 1, relay, result)
            case Rejection(relay, envelope, _, code, _, buried):
                to.add(of.publish_failures, 1, relay, envelope.event_type, code)
                to.add(of.publish_retries, 0 if buried else 1, relay, envelope.event_type)
            case Ingested(inbox, _, events, _, _, _):
                to.add(of.ingested, events, inbox)
                to.set(of.broker_up, 1, inbox)
            case EntryRefused(inbox, _, _, _):
                to.add(of.ingest_refused, 1, inbox)
            case BrokerDown(subscription, _, _, _):
                to.set(of.broker_up, 0, subscription)
            case BrokerUp(subscription):
                to.set(of.broker_up, 1, subscription)


def begin(to: Instruments, inboxes: Iterable[str], rollups: Iterable[str]) -> None:
    """Start the counters of alerts at 0: Prometheus does not see an increase of a counter that did not exist."""
    to.add(of.renewals, 0, "lost")
    for inbox in inboxes:
        to.add(of.ingest_refused, 0, inbox)
    for rollup in rollups:
        to.add(of.rollup_errors, 0, rollup)


def set_state(to: Instruments, found: Status, server: Server, tables: list[Tuples]) -> None:
    """Set the gauges that describe the database, for all workers together."""
    now, subscriptions = found.read_at, found.subscriptions
    rollups = [each for each in found.rollups if each.uninstalled_at is None]
    paused = {each.name for each in subscriptions if found.paused_at is not None or each.paused_at is not None}
    sure = [each for each in subscriptions if each.oldest_is_certain or each.oldest_owed_at is not None]
    still = [each for each in subscriptions if each.name in paused or each.kind == "reader"]
    waiting = [each for each in subscriptions if each.oldest_is_certain or each.waiting_since is not None]
    lags = _by_name(sure, lambda each: _age(each.oldest_owed_at, now))
    greatest = max(lags.values(), default=0.0)
    to.replace(of.database_up, {(): 1.0})
    to.replace(of.depth, _by_name(subscriptions, _depth))
    to.replace(of.waiting, _by_name([each for each in subscriptions if each.kind != "job"], lambda each: each.waiting))
    to.replace(of.lag, lags)
    to.replace(of.overdue, _by_name([*still, *waiting], lambda each: _age(each.waiting_since, now)))
    to.replace(of.paused, _by_name(subscriptions, lambda each: each.name in paused))
    to.replace(of.dead_letters, _by_name(subscriptions, lambda each: each.dead))
    set_relays(to, now, [each for each in subscriptions if each.kind == "relay"])
    to.replace(of.oldest_owed, {(): greatest} if greatest or len(sure) == len(subscriptions) else {})
    to.replace(of.workers, {(): float(found.live)})
    to.replace(of.notify_queue, {(): server.queue})
    to.replace(of.dead_tuples, {(each.table,): float(each.dead) for each in tables})
    to.replace(of.rollup_pending, _by_name(rollups, lambda each: each.pending))
    to.replace(of.rollup_overdue, _by_name(rollups, lambda each: max(0, _age(each.oldest_at, now) - _longest(each))))
    to.replace(of.rollup_failed, _by_name(rollups, lambda each: (each.last_run or {}).get("result") == "error"))
    to.replace(of.rollup_set_aside, _by_name(rollups, lambda each: each.set_aside))


def set_relays(to: Instruments, now: datetime, relays: Sequence[Standing | RelayTopics]) -> None:
    """Set the gauges of what relays owe. Topics that a relay names are there with 0."""
    nothing: dict[tuple[str, ...], float] = {
        (each.name, name): 0.0 for each in relays for name in (each.event_types or ())[:KEPT]
    }
    topics = {(each.name, topic.name): topic for each in relays for topic in each.topics}
    to.replace(of.relay_depth, nothing | {labels: float(topic.depth) for labels, topic in topics.items()})
    to.replace(of.relay_lag, nothing | {labels: _age(topic.oldest_at, now) for labels, topic in topics.items()})


def _by_name(those: Iterable[T], value: Callable[[T], float]) -> dict[tuple[str, ...], float]:
    return {(each.name,): float(value(each)) for each in those}


def _age(since: datetime | None, now: datetime) -> float:
    return 0.0 if since is None else max(0.0, (now - since).total_seconds())


def _depth(each: Standing) -> int:
    """An event that waits for a retry may be ahead of the cursor, and is then counted there."""
    return each.waiting if each.kind == "job" else each.lag


def _longest(each: Rolling) -> float:
    return each.max_wait.total_seconds()


def forget_state(to: Instruments, up: bool = False) -> None:
    """Gauges without a known value disappear. `up`: the database answers."""
    for metric in of.STATE:
        to.replace(metric, {(): float(up)} if metric is of.database_up else {})
