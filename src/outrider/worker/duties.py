"""What a worker runs, and the loops that run it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from outrider.postgres.heartbeat import Identity
from outrider.postgres.worker_sessions import WorkerSessions
from outrider.worker.canary_loop import CanaryLoop
from outrider.worker.event_router import EventRouter
from outrider.worker.handler import Handler
from outrider.worker.job_handler import JobHandler
from outrider.worker.job_loop import JobLoop
from outrider.worker.loop import Loop
from outrider.worker.schedule_loop import Scheduled, ScheduleLoop
from outrider.worker.site import SLOTS, Site
from outrider.worker.wakeups import Wakeups


@dataclass(frozen=True, slots=True)
class Duties:
    handlers: Sequence[Handler] = ()
    jobs: Sequence[JobHandler] = ()
    schedules: Sequence[Scheduled] = ()
    others: Callable[[str, Wakeups], Sequence[Loop]] = lambda _worker, _wakeups: ()
    """The loops of relays, inboxes, rollups and upkeep, made for the worker of that name."""
    classes: Sequence[str] = ()
    """Events that were published with one of these channel classes wake the worker too."""
    every_class: bool = False
    """Events of any channel class wake its relays, which send them all."""
    channel: str | None = None
    """The only channel that wakes the worker; None = those of its generation and classes."""
    slots: int = SLOTS
    """How many jobs run at the same time."""
    queues: Sequence[str] = ()
    """The queues whose jobs it runs; empty = all."""

    def names(self, loops: Iterable[Loop]) -> list[str]:
        """The subscriptions that the worker serves, including those of these loops."""
        names = [each.name for of in (self.handlers, self.jobs, loops) for each in of]
        return sorted({name for name in names if not name.startswith("(")})

    def loops(self, site: Site, identity: Identity, sessions: WorkerSessions, wakeups: Wakeups) -> list[Loop]:
        """All loops except those of handlers, which depend on the generations that are served."""
        settings, signals, poll = site.settings, site.signals, wakeups.pause
        loops: list[Loop] = [
            EventRouter(
                each, signals, settings.schema, sessions=sessions, poll=poll, hears_at_once=wakeups.hears_at_once
            )
            for each in self.jobs
            if each.subscription.events
        ]
        if self.jobs:
            loops.append(JobLoop(site, identity, self.jobs, slots=self.slots, queues=self.queues, poll=poll))
        if self.schedules:
            fired = lambda kind: wakeups.wake(kind, settings.generation)  # noqa: E731
            loops.append(ScheduleLoop(self.schedules, settings, signals, sessions=sessions, poll=poll, on_fired=fired))
        loops.append(CanaryLoop(settings.generation, str(identity), settings.schema, sessions))
        return [*loops, *self.others(str(identity), wakeups)]
