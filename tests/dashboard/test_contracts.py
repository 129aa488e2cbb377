"""Contracts: every event type, who publishes and who consumes it, and what differs."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest
from tests.dashboard.conftest import TOKEN, log_in
from tests.dashboard.market import Ordered, Packed, make_market

from outrider import Outrider
from outrider.contract import Contract
from outrider.dashboard import Dashboard
from outrider.dashboard.server import serving

PUBLISH = "select outrider.publish('market.ordered', '{}', event_version => %s, source => 'market')"


@pytest.fixture
async def market(database: str) -> Outrider:
    app = make_market(database)
    with psycopg.connect(database) as conn:
        conn.execute("create table parcel (id bigint generated always as identity primary key, truck text, name text)")
    async with app:
        await app.migrate()
        with psycopg.connect(database) as conn:
            for version in (1, 3):
                conn.execute(PUBLISH, [version])
    return app


@asynccontextmanager
async def board(app: Outrider, **options: Any) -> AsyncIterator[httpx.AsyncClient]:
    async with (
        Dashboard(app, token=TOKEN, **options) as found,
        serving(found, port=0) as address,
        httpx.AsyncClient(base_url=address, timeout=60) as client,
    ):
        client.board = found  # type: ignore[attr-defined]
        await log_in(client)
        yield client


def row(page: str, name: str) -> str:
    """The text of the row of a type."""
    [found] = re.findall(rf"<tr><td><a href=\"/contracts/{re.escape(name)}\">.*?</tr>", page, re.DOTALL)
    return " ".join(re.sub("<[^>]*>", " ", found).split())


async def test_the_catalogue_names_publishers_and_consumers(market: Outrider, tmp_path: Path) -> None:
    async with board(market, contracts=tmp_path / "none") as client:
        page = (await client.get("/contracts")).text
        assert re.match(r"market\.ordered 1, 2, 3 market market\.pack .* ago", row(page, "market.ordered"))
        assert row(page, "market.packed").startswith("market.packed 1 market nobody")
        assert "market.dock" in row(page, "depot.announced")
        assert "version 3 is in the log, and neither a class nor a snapshot of it is known here" in page
        assert "market.dock wants it, and nobody is known to publish it" in page
        assert "has no snapshot" not in page, "an app that keeps no snapshots is not blamed for it"
        only = (await client.get("/contracts?context=elsewhere")).text
        assert "market.ordered" not in only


async def test_one_type_shows_its_versions_and_fields(market: Outrider, tmp_path: Path) -> None:
    async with board(market, contracts=tmp_path / "none") as client:
        page = (await client.get("/contracts/market.ordered")).text
        assert "A customer has ordered." in page
        assert page.index("Version 3") < page.index("Version 2") < page.index("Version 1")
        assert "tests.dashboard.market.Ordered" in page
        assert ">cents</td><td>whole number</td><td>yes</td>" in page
        assert 'href="/log?type=market.ordered"' in page
        missing = await client.get("/contracts/no.such")
        assert (missing.status_code, "Nobody is known to publish" in missing.text) == (404, True)


async def test_it_says_what_a_change_would_break(market: Outrider, tmp_path: Path) -> None:
    kept = json.loads(Contract.of(Ordered, "market").text)
    kept["properties"]["coupon"] = {"type": "string"}
    kept["required"].append("coupon")
    (tmp_path / "market.ordered.v2.json").write_text(json.dumps(kept))
    (tmp_path / "market.packed.v1.json").write_text(Contract.of(Packed, "market").text)
    async with board(market, contracts=tmp_path) as client:
        page = (await client.get("/contracts")).text
        assert "Something differs" in page
        assert "breaks the promise of" in page
        assert "coupon: was text, is gone" in page
        assert "leave version 2 as it was" in page
        assert (
            "None: log, subscriptions, classes and snapshots agree."
            in (await client.get("/contracts/market.packed")).text
        )


async def test_it_compares_subscriptions_with_the_database(market: Outrider, tmp_path: Path) -> None:
    assert market.settings.dsn is not None
    with psycopg.connect(market.settings.dsn) as conn:
        conn.execute(
            "update outrider.subscription set event_types = '{market.ordered,market.gone}' where name = 'market.pack'"
        )
        conn.execute("update outrider.subscription set event_types = '{market.else}' where name = 'market.dock'")
    async with board(market, contracts=tmp_path / "none") as client:
        page = (await client.get("/contracts")).text
        assert "market.pack takes it in the database, and the code here does not declare that" in page
        assert "market.dock is declared to take it, and the database does not know that yet" in page


async def test_without_an_app_the_database_alone_speaks(market: Outrider) -> None:
    async with board(Outrider(dsn=market.settings.dsn)) as client:
        page = (await client.get("/contracts")).text
        assert row(page, "market.ordered").startswith("market.ordered 1, 3 market market.pack")
        assert "neither a class nor a snapshot" not in page
