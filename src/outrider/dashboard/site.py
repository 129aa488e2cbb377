"""`Dashboard`: the ASGI app. Run it by `outrider dashboard`, or mount it into your own app."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Self

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from outrider.app import Outrider
from outrider.dashboard import errors
from outrider.dashboard.access import LOOPBACK, Access, Authorize, Proxy
from outrider.dashboard.confidential import check_level
from outrider.dashboard.database import Database
from outrider.dashboard.guard import Guard
from outrider.dashboard.live import Live
from outrider.dashboard.pages import (
    assets,
    audit,
    contracts,
    dead_letters,
    event,
    jobs,
    log,
    login,
    now,
    runs,
    schedules,
    streams,
    subscriptions,
)
from outrider.dashboard.poller import Poller
from outrider.dashboard.runs import Runs
from outrider.dashboard.stream_ends import StreamEnds

Page = Callable[["Dashboard", Request], Awaitable[Response]]
SHOWN: tuple[tuple[str, Page], ...] = (
    ("/", now.show),
    ("/subscriptions/{name}", subscriptions.show_one),
    ("/log", log.show),
    ("/event", event.find),
    ("/event/{id}", event.show),
    ("/dead-letters", dead_letters.show),
    ("/dead-letters/act", dead_letters.preview),
    ("/dead-letters/waiting", dead_letters.show_waiting),
    ("/dead-letters/behind/{id}", dead_letters.show_behind),
    ("/jobs", jobs.show),
    ("/jobs/act", jobs.preview),
    ("/jobs/{id}", jobs.show_one),
    ("/schedules", schedules.show),
    ("/contracts", contracts.show),
    ("/contracts/{type}", contracts.show_one),
    ("/streams", streams.show),
    ("/rollups/{name}", streams.show_rollup),
    ("/audit", audit.show),
    ("/runs/{id}", runs.show),
    ("/login", login.show),
    ("/static/{name}", assets.send),
    ("/{page}", now.show_snapshot),
)
DONE: tuple[tuple[str, Page], ...] = (
    ("/login", login.enter),
    ("/logout", login.leave),
    ("/dead-letters/act", dead_letters.act),
    ("/event/{id}/replay", event.replay),
    ("/event/{id}/discard", event.discard),
    ("/event/{id}/withdraw", event.withdraw),
    ("/subscriptions/{name}/pause", subscriptions.pause),
    ("/subscriptions/{name}/resume", subscriptions.resume),
    ("/jobs/act", jobs.act),
    ("/jobs/{id}/cancel", jobs.cancel),
    ("/jobs/{id}/run-now", jobs.run_now),
    ("/schedules/{name}/pause", schedules.pause),
    ("/schedules/{name}/resume", schedules.resume),
    ("/schedules/{name}/run-now", schedules.run_now),
    ("/runs/{id}/stop", runs.stop),
)
"""What forms do."""


class Dashboard:
    """Exactly one of `token`, `proxy` and `authorize` says who may see it.

    `authorize(request)` returns a `User`, or None for nobody. `hosts` are the names under which it is reached; `actions`
    what may be done, of `ACTIONS`: by default nothing. Payloads of content classes above `values_up_to` are shown without
    their values. `dsn` is a login of the role `dashboard`, `operator_dsn` one of
    the role `operator`; by default both are the app's own. `contracts` is the folder of the snapshots, if the app keeps
    any. As a context manager it closes its connections at the end.
    """

    def __init__(
        self,
        app: Outrider,
        *,
        token: str | None = None,
        proxy: Proxy | None = None,
        authorize: Authorize | None = None,
        hosts: Iterable[str] = LOOPBACK,
        actions: Iterable[str] = (),
        values_up_to: str = "internal",
        dsn: str | None = None,
        operator_dsn: str | None = None,
        contracts: Path | str = "contracts",
    ) -> None:
        self.app = app
        self.access = Access(token=token, proxy=proxy, authorize=authorize, hosts=hosts, actions=actions)
        self.values_up_to = check_level(values_up_to)
        self.contracts = Path(contracts)
        self.database = Database(app, dsn, operator_dsn)
        self.stream_ends = StreamEnds(app)
        self.poller = Poller(app, self.database)
        self.runs = Runs(self.database, self.poller)
        self._asgi = Guard(self._routed(), self.access)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._asgi(scope, receive, send)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.runs.close()
        await self.poller.close()
        await self.database.close()

    def _routed(self) -> Starlette:
        routes = [Route(path, partial(page, self), methods=["POST"]) for path, page in DONE]
        live = Live(self).stream
        routes += [Route("/live/{page}", live), Route("/live/{page}/{name}", live)]
        routes += [Route(path, partial(page, self)) for path, page in SHOWN]
        site = Starlette(routes=routes, exception_handlers=errors.handlers())
        site.router.redirect_slashes = False  # it redirects to http://, also behind a proxy with TLS
        return site
