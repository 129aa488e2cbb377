"""A subscription keeps its name when the code around it changes: whoever declares one has to give it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from outrider import Event, Job, Outrider, Retry, Snooze
from outrider.errors import ConfigError, DeclarationError
from outrider.inbox.inbox import Inbox, InboxOptions
from outrider.options import Declaration
from outrider.relay.relay import Relay, RelayOptions
from outrider.rollup.rollup import Rollup, RollupOptions
from outrider.streams import RedisStreams
from outrider.worker.handler import Handler, NamedOptions
from outrider.worker.job_handler import JobHandler, JobOptions

DOCS = Path(__file__).parents[1] / "docs"


class Placed(Event, type="declare.placed"):
    pass


class Cancelled(Event, type="declare.cancelled"):
    pass


class Ship(Job, type="declare.ship"):
    pass


async def invoice(event: Any) -> None: ...


class Invoice:
    async def __call__(self, event: Any) -> None: ...


@pytest.mark.parametrize(
    "declare",
    [
        lambda app: app.handler(Placed, name="invoice")(invoice),
        lambda app: app.subscribe(Placed, lambda _: invoice, name="invoice"),
    ],
)
def test_the_name_of_a_handler_has_a_context(declare: Any) -> None:
    with pytest.raises(
        DeclarationError, match=r"the handler name 'invoice' has no context: write name='shop\.invoice'"
    ):
        declare(Outrider(context="shop"))


def test_what_cannot_be_called_is_no_classifier() -> None:
    with pytest.raises(DeclarationError, match=r"shop\.invoice: classify='terminal' cannot be called: pass a function"):
        Outrider(context="shop").handler(Placed, name="shop.invoice", classify="terminal")(invoice)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("declare", "suggested"),
    [
        (lambda app: app.handler(Placed)(invoice), "@app.handler(Placed, name='shop.invoice')"),
        (lambda app: app.handler(Placed, name="")(invoice), "@app.handler(Placed, name='shop.invoice')"),
        (lambda app: app.handler(Placed, Cancelled)(invoice), "@app.handler(Placed, Cancelled, name='shop.invoice')"),
        (lambda app: app.handler(Placed)(lambda _: None), "@app.handler(Placed, name='shop.placed')"),
        (lambda app: app.handler(Placed)(Invoice()), "@app.handler(Placed, name='shop.invoice')"),
        (lambda app: app.job(on=Placed)(invoice), "@app.job(on=Placed, name='shop.invoice')"),
        (
            lambda app: app.job(on=[Placed, Cancelled])(invoice),
            "@app.job(on=[Placed, Cancelled], name='shop.invoice')",
        ),
    ],
)
def test_without_a_name_nothing_is_declared(declare: Any, suggested: str) -> None:
    app = Outrider(context="shop")
    with pytest.raises(DeclarationError) as refused:
        declare(app)
    assert suggested in str(refused.value)
    assert "Keep it when you rename the function" in str(refused.value)
    assert app.subscriptions == ()


BROKER = RedisStreams("redis://127.0.0.1:1", stream="s")
ROLLUP: dict[str, Any] = {"table": "piece", "key": ["document"], "single": "a.piece", "rollup": "a.pieces"}


@pytest.mark.parametrize(
    ("declare", "says"),
    [
        (
            lambda app: app.handler(Placed, name="a.b", partition=2)(invoice),
            "a handler has no option partition; it has breaker, channel_class, .*, timeout: did you mean partitions?",
        ),
        (lambda app: app.job(Ship, time_out="5m")(invoice), "a job has no option time_out; it has .*mean timeout"),
        (lambda app: app.relay("a.b", BROKER, workspace="a"), "a relay has no option workspace; .*mean workspace_id"),
        (lambda app: app.inbox("a.b", BROKER, size=1), r"an inbox has no option size; it has batch, .*\w$"),
        (lambda app: app.rollup("a.b", **ROLLUP, wen="x"), "a rollup has no option wen; it has .*mean when"),
        (lambda app: app.schedule("* * * * *", Ship(), zone="x"), "a schedule has no option zone; .*mean time_zone"),
    ],
)
def test_an_unknown_option_names_those_that_there_are(declare: Any, says: str) -> None:
    with pytest.raises(TypeError, match=says.replace("?", r"\?")):
        declare(Outrider(context="shop"))


@pytest.mark.parametrize(
    ("declaration", "keywords", "page"),
    [
        (Handler, NamedOptions, "guide"),
        (JobHandler, JobOptions, "jobs"),
        (Relay, RelayOptions, "relay"),
        (Inbox, InboxOptions, "inbox"),
        (Rollup, RollupOptions, "rollups"),
    ],
)
def test_type_checkers_and_the_docs_know_every_option(
    declaration: type[Declaration], keywords: type, page: str
) -> None:
    options = declaration.options()
    assert set(options) == set(keywords.__annotations__)
    documented = set[str]()
    for row in (DOCS / f"{page}.md").read_text().splitlines():
        if row.startswith("| `"):
            documented.update(re.findall(r"`(\w+)`", row.split("|")[1]))
    assert set(options) <= documented, f"docs/{page}.md has no row for them"


@pytest.mark.parametrize(
    ("declare", "option"),
    [
        (lambda app, wrong: app.handler(Placed, name="a.b", timeout=wrong)(invoice), "timeout"),
        (lambda app, wrong: app.job(on=Placed, name="a.b", lease=wrong)(invoice), "lease"),
        (lambda app, wrong: app.relay("a.b", BROKER, poll=wrong), "poll"),
        (lambda app, wrong: app.inbox("a.b", BROKER, poll=wrong), "poll"),
        (lambda app, wrong: app.rollup("a.b", **ROLLUP, debounce=wrong), "debounce"),
    ],
)
def test_a_wrong_duration_names_who_has_it(declare: Any, option: str) -> None:
    with pytest.raises(DeclarationError, match=f"^a.b: {option}: '30 seconds' is not a duration: write a whole number"):
        declare(Outrider(context="shop"), "30 seconds")


def test_a_wrong_duration_of_an_app_names_its_option() -> None:
    with pytest.raises(ConfigError, match=r"^poll: '30 seconds' is not a duration"):
        Outrider(context="shop", poll="30 seconds")
    with pytest.raises(ConfigError, match=r"^after: '30 seconds' is not a duration"):
        Retry(after="30 seconds")
    with pytest.raises(ConfigError, match=r"^for_: '30 seconds' is not a duration"):
        Snooze("30 seconds")


def test_a_job_is_named_after_its_type() -> None:
    app = Outrider(context="shop")
    app.job(Ship)(invoice)
    app.schedule("0 3 * * *", Ship())
    assert [each.name for each in app.subscriptions] == ["declare.ship"]
