"""The first page never says that all is well while something is known to the contrary."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from tests.dashboard.conftest import Serve, log_in

from outrider.dashboard.poller import LiveState
from outrider.dashboard.verdict import OLD, verdict
from outrider.doctor.finding import critical, note, ok, warning
from outrider.postgres.admin.status import Standing, Status
from outrider.postgres.admin.streams import Stream

NOW = datetime(2026, 11, 18, 10, tzinfo=UTC)
OF_ONE = Standing(
    name="a.handler", kind="handler", context="a", event_types=["a.b"], partitions=1, order="key", states=("running",),
    paused_at=None, lag=0, oldest_owed_at=None, oldest_is_certain=True, waiting_since=None, waiting=0, running=0, dead=0,
    positions=(), streams=(),
)  # fmt: skip
REFUSED = Stream(name="s", position="1-0", events=1, moved_at=NOW, refused=3)
WELL = LiveState(
    number=1,
    status=Status(
        schema="outrider", version=1, pending=(), read_at=NOW, seq=0, paused_at=None, paused_schedules={}, jobs={},
        subscriptions=(OF_ONE,), rollups=(), workers=(),
    ),
    findings=(ok("workers", "1 at work"),),
    examined_at=NOW,
)  # fmt: skip


def with_one(**changes: Any) -> LiveState:
    assert WELL.status is not None
    return replace(WELL, status=replace(WELL.status, subscriptions=(replace(OF_ONE, **changes),)))


def with_status(**changes: Any) -> LiveState:
    assert WELL.status is not None
    return replace(WELL, status=replace(WELL.status, **changes))


def test_all_is_well() -> None:
    said = verdict(WELL, NOW)
    assert (said.title, said.text, said.tone) == (
        "All is well", "1 subscription; 0 workers; nothing needs attention.", "",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("snapshot", "title", "told"),
    [
        (with_one(dead=1), "Nothing is urgent", "1 dead letter."),
        (with_one(dead=2000), "Nothing is urgent", "dead letters"),
        (with_one(states=("paused",), paused_at=NOW), "Nothing is urgent", "paused: a.handler"),
        (with_one(states=("breaker",)), "Look at this soon", "Breaker open: a.handler"),
        (with_one(states=("no_worker",)), "Look at this soon", "No worker: a.handler"),
        (with_one(states=("unable",)), "Look at this soon", "Unknown event types: a.handler"),
        (with_one(states=("broker_down",)), "Look at this soon", "Broker down: a.handler"),
        (with_one(states=("troubled",)), "Look at this soon", "Rolled back: a.handler"),
        (with_one(states=("failing",)), "Look at this soon", "Failing: a.handler"),
        (
            with_one(streams=(Stream(name="s", position="1-0", events=1, moved_at=NOW, refused=3),)),
            "Nothing is urgent",
            "3 refused by inboxes",
        ),
        (with_status(paused_at=NOW), "Look at this soon", "Everything is paused"),
        (with_status(paused_schedules={"a.nightly": NOW}), "Nothing is urgent", "paused: a.nightly"),
        (replace(WELL, findings=(note("lag", "x", "y"),)), "Nothing is urgent", "see the notes below"),
        (replace(WELL, findings=(warning("lag", "x", "y"),)), "Look at this soon", "1 thing needs attention: lag."),
        (
            replace(
                WELL, findings=(warning("dead_letters", "x", "y"), critical("lag", "x", "y"), critical("lag", "z", ""))
            ),
            "Act now",
            "3 things need attention: lag, dead letters.",
        ),
        (replace(WELL, findings=None), "Checking …", "first round"),
        (replace(WELL, examined_at=NOW - OLD - timedelta(minutes=1)), "Checking …", "last round was 4 min ago"),
        (replace(WELL, examine_error="no"), "Not checked", "round failed: no"),
        (with_status(subscriptions=()), "Nothing to watch yet", "No subscription is registered."),
        (replace(WELL, error="gone"), "Not known", "does not answer"),
        (replace(WELL, status=None), "Not known", "does not answer"),
    ],
)
def test_all_is_not_well(snapshot: LiveState, title: str, told: str) -> None:
    said = verdict(snapshot, NOW)
    assert said.title == title
    assert told in said.text


async def test_what_a_look_has_seen_counts_before_the_doctor_comes_again(serve: Serve) -> None:
    """The shop has a dead letter, a paused job type, and no worker. The doctor's last round found nothing."""
    async with serve() as client:
        await log_in(client)
        await client.get("/")
        poller = client.board.poller  # type: ignore[attr-defined]
        await poller.close()  # no later look replaces the snapshot
        poller.snapshot = replace(poller.snapshot, findings=(), examined_at=None)
        shown = (await client.get("/")).text
        assert "All is well" not in shown
        assert (
            "<strong>Look at this soon</strong><span>No worker: dash.invoice, dash.mail, dash.search.</span>" in shown
        )
        poller.snapshot = replace(poller.snapshot, findings=(note("dead_letters", "dash.invoice has 1", "look"),))
        assert '<details data-key="notes" open><summary>1 note from the doctor' in (await client.get("/")).text
