"""The Jinja environment, and the values that every template gets."""

from __future__ import annotations

from functools import cache
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.requests import Request
from starlette.responses import HTMLResponse

from outrider.dashboard import text
from outrider.dashboard.charts import bars
from outrider.dashboard.delays import OPEN, delays
from outrider.dashboard.timeline import of_job
from outrider.dashboard.topology import topology
from outrider.dashboard.verdict import verdict
from outrider.postgres.admin.activity import Sample

if TYPE_CHECKING:
    from outrider.dashboard.site import Dashboard

PAGES = (
    (
        "Look",
        (
            ("now", "Now", ""),
            ("topology", "Topology", "topology"),
            ("subscriptions", "Subscriptions", "subscriptions"),
            ("workers", "Workers", "workers"),
            ("contracts", "Contracts", "contracts"),
        ),
    ),
    ("Find", (("log", "Log", "log"), ("dead_letters", "Dead letters", "dead-letters"), ("jobs", "Jobs", "jobs"))),
    (
        "Run",
        (
            ("schedules", "Schedules", "schedules"),
            ("streams", "Relays and inboxes", "streams"),
            ("rollups", "Rollups", "rollups"),
            ("audit", "Audit", "audit"),
        ),
    ),
)
"""The navigation: groups of (id, title, path)."""


@cache
def environment() -> Environment:
    made = Environment(
        loader=PackageLoader("outrider.dashboard"),
        autoescape=True,
        auto_reload=False,
        finalize=text.shown,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters.update(text.FILTERS)
    made.globals.update(
        bars=bars,
        delays=delays,
        open_for=OPEN,
        sample=Sample.of,
        timeline_of=of_job,
        topology=topology,
        verdict=verdict,
        waiting_of=attrgetter("waiting"),
        owed_of=attrgetter("owed"),
        dead_of=attrgetter("dead"),
        rate=lambda value: f"{value:,.1f}/s",
        whole=lambda value: f"{value:,.0f}",
        span_of=text.span,
    )
    made.globals["navigation"] = PAGES
    return made


def fragment(name: str, **values: Any) -> str:
    return environment().get_template(name).render(**values)


async def page(
    board: Dashboard, request: Request, template: str, here: str, *, status_code: int = 200, **values: Any
) -> HTMLResponse:
    """A whole page: the template extends base.html. `here` is the page's id in the navigation."""
    snapshot = await board.poller.current()
    user = request.state.user
    return HTMLResponse(
        fragment(
            template,
            base=request.scope.get("root_path", ""),
            here=here,
            live=values.pop("live", here),
            user=user,
            may=lambda action: board.access.may(user, action),
            form_token=board.access.form_token(user),
            has_login=board.access.token is not None,
            snapshot=snapshot,
            status=snapshot.status,
            history=board.poller.history,
            traffic=board.poller.traffic,
            now=board.poller.now(),
            **values,
        ),
        status_code,
    )
