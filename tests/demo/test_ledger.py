"""The demo's figures are counted, not claimed: each kind of fault shows when it is there."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from outrider import Backoff
from outrider.demo.draw import Activity, Figures, summary
from outrider.demo.ledger import Ledger
from outrider.demo.shop import Card, Shop, open_shop

RIGHT = {"orders": 3, "published": 3, "invoices": 3, "rewarded": 3, "receipts": 3}
CARDS: list[Card] = ["good", "shaky", "stolen", "good"]
DUE = "update outrider.delivery set run_at = now()"
DOUBLE = (
    "insert into invoice (order_id, customer, number, total) select order_id, customer, number, total from invoice "
)
GHOST = "insert into invoice (order_id, customer, number, total) values (99, 'amber', 3, 1)"
SWAP = """
update invoice set number = 3 - invoice.number, order_id = o.id
from placed_order as o where o.number = 3 - invoice.number and invoice.number < 3
"""
BURY = """
insert into outrider.delivery (subscription, partition, seq, event_id, event_type, status, head, reached, run_at, last_error)
select 'shop.invoice', 0, seq, id, event_type, 'failed', false, true, now(), 'out of paper' from outrider.outbox
where payload ->> 'number' = '2'
"""


@pytest.fixture
async def shop(database: str) -> AsyncIterator[Shop]:
    async with open_shop(database, retry=Backoff.table("1h", "1h")) as app:
        shop = Shop(app)
        await shop.furnish()
        yield shop


async def execute(shop: Shop, *statements: str) -> None:
    async with shop.app.connect() as conn:
        for statement in statements:
            await conn.execute(statement.encode())


async def count(shop: Shop, ledger: Ledger, *, closed: bool) -> Figures:
    async with shop.app.connect() as conn:
        return await ledger.read_on(conn, closed=closed)


async def test_handlers_fail_and_the_figures_are_right(shop: Shop) -> None:
    """Good, shaky and stolen cards; looked at after every attempt, and the figures are those of a new ledger."""
    failures: list[str] = []
    ledger = Ledger(failures.append)
    for card in CARDS:
        await shop.buy("amber", card)
    seen = []
    for _ in range(4):
        await execute(shop, DUE)
        await shop.app.drain()
        figures = await count(shop, ledger, closed=False)
        seen.append((figures.invoices, figures.failed, figures.behind, figures.dead, figures.all_handled))
    assert seen == [(1, 1, 2, 0, False), (2, 1, 1, 0, False), (2, 1, 1, 0, False), (3, 0, 0, 1, True)]
    figures = await count(shop, ledger, closed=True)
    assert figures == await count(shop, Ledger(), closed=True)
    assert (figures.exact, figures.dead, figures.stolen, figures.lost) == (True, 1, 1, 0)
    assert failures[0].startswith("order 2 of amber: card declined, next attempt in 3")
    assert failures[-1] == "order 3 of amber: card declined, now a dead letter"


async def test_late_commits_are_told_and_rolled_back_orders_do_not_show(shop: Shop) -> None:
    late: list[str] = []
    await shop.buy("mist", "good")
    await shop.change_mind("amber")
    await shop.drop_an_item("birch")
    while (await shop.app.drain()).to_retry:
        await execute(shop, DUE)
    figures = await count(shop, Ledger(tell_late=late.append), closed=True)
    assert (figures.exact, figures.orders, shop.rolled_back) == (True, 3, 2)
    assert [text.partition(",")[0] for text in late] == ["order 1 of mist: committed late"]


@pytest.mark.parametrize(
    ("damage", "closed", "expected"),
    [
        ([], True, {}),
        (["delete from invoice where number = 2"], False, {"lost": 1, "invoices": 2}),
        (["delete from invoice where number = 2"], True, {"lost": 1, "invoices": 2}),
        (["delete from invoice where number = 3"], False, {"invoices": 2}),
        (["delete from invoice where number = 3"], True, {"lost": 1, "invoices": 2}),
        (["delete from invoice"], True, {"lost": 3, "invoices": 0}),
        ([DOUBLE + "where number = 2"], True, {"doubled": 1, "invoices": 4}),
        ([SWAP], True, {"disordered": 1}),
        ([GHOST], True, {"ghosts": 1, "invoices": 4}),
        ([BURY, "delete from invoice where number = 2"], True, {"lost": 1, "dead": 1, "invoices": 2}),
        (["delete from outrider.event_handled"], True, {"receipts": 0}),
        (["update loyalty set orders = 2"], True, {"rewarded": 2}),
        (["delete from outrider.outbox where seq = 1"], True, {"published": 2}),
    ],
)
async def test_every_fault_is_counted(shop: Shop, damage: list[str], closed: bool, expected: dict[str, int]) -> None:
    for _ in range(3):
        await shop.buy("amber", "good")
    await shop.app.drain()
    await execute(shop, *damage)
    figures = await count(shop, Ledger(), closed=closed)
    wanted = RIGHT | expected if closed else RIGHT | expected | {"receipts": 0}
    found = {name: getattr(figures, name) for name in wanted}
    assert found == wanted
    faults = (figures.lost, figures.doubled, figures.disordered, figures.ghosts)
    assert faults == tuple(expected.get(name, 0) for name in ("lost", "doubled", "disordered", "ghosts"))
    if closed:
        assert figures.exact == (not damage)
        assert ("WRONG" in summary(figures, Activity())) == bool(damage)


async def test_points_must_be_those_that_were_earned(shop: Shop) -> None:
    await shop.buy("amber", "good")
    await shop.app.drain()
    assert (await count(shop, Ledger(), closed=True)).exact
    await execute(shop, "update loyalty set points = points + 1")
    assert not (await count(shop, Ledger(), closed=True)).exact
