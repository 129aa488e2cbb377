"""A subscription keeps its name when the code around it changes: whoever declares one has to give it."""

from __future__ import annotations

from typing import Any

import pytest

from outrider import Event, Job, Outrider
from outrider.errors import DeclarationError


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


def test_a_job_is_named_after_its_type() -> None:
    app = Outrider(context="shop")
    app.job(Ship)(invoice)
    app.schedule("0 3 * * *", Ship())
    assert [each.name for each in app.subscriptions] == ["declare.ship"]
