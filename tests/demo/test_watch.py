"""The demo's figures are counted, not claimed: each kind of fault shows when it is there."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from psycopg import AsyncConnection

from outrider.demo import watch
from outrider.demo.shop import SEE, TABLES
from outrider.demo.watch import Figures

ORDERS = "insert into placed_order (customer, number, total) select 'amber', n, 1 from generate_series(1, 3) as n"
NOW = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("seen", "closed", "expected"),
    [
        ([(1, 1), (2, 2), (3, 3)], True, Figures(orders=3, read=3)),
        ([(2, 2), (1, 1), (3, 3)], True, Figures(orders=3, read=3, late=1, disordered=1)),
        ([(1, 1), (3, 3)], False, Figures(orders=3, read=2, lost=1)),
        ([(1, 1), (2, 2)], False, Figures(orders=3, read=2)),
        ([(1, 1), (2, 2)], True, Figures(orders=3, read=2, lost=1)),
        ([], True, Figures(orders=3, lost=3)),
        ([(1, 1), (2, 2), (2, 2), (3, 3)], True, Figures(orders=3, read=4, doubled=1)),
        ([(1, 1), (2, 2), (3, 3), (4, 4)], True, Figures(orders=3, read=4, ghosts=1)),
        ([(5, 1), (2, 2), (7, 3)], True, Figures(orders=3, read=3, late=1)),
    ],
)
async def test_every_fault_is_counted(
    database: str, seen: list[tuple[int, int]], closed: bool, expected: Figures
) -> None:
    """`seen` holds (number in the log, order) as a clerk wrote them."""
    async with await AsyncConnection.connect(database) as conn, conn.cursor() as cursor:
        await conn.execute(TABLES.encode())
        await conn.execute("insert into customer values ('amber', 3)")
        await conn.execute(ORDERS)
        await cursor.executemany(SEE, [(0, seq, order, "amber", order, NOW) for seq, order in seen])
        figures = await watch.count(conn, closed=closed)
    assert figures == expected
    assert figures.exact == (expected.lost + expected.doubled + expected.disordered + expected.ghosts == 0)
    assert ("WRONG" in watch.summary(figures, 0)) != figures.exact
