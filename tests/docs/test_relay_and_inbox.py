"""docs/relay.md and docs/inbox.md cannot lie: their programs and commands run, beside real brokers and two databases.

After a deliberate change of a message: OUTRIDER_UPDATE_SNAPSHOT=1 pytest -p no:xdist tests/docs/test_relay_and_inbox.py
"""

from __future__ import annotations

import json
import os
import re
from datetime import UTC, datetime
from pathlib import Path
from uuid import UUID

import psycopg
import pytest
from tests.brokers import NatsServer, RedisServer
from tests.docs.test_recovery import BLOCK, Operator
from tests.preloaded import Preloaded
from tests.relay.test_metrics import names_of

from outrider import Envelope
from outrider.postgres.replicas import DDL
from outrider.streams import Codec
from outrider.streams.codecs import CloudEventsCodec, EnvelopeCodec
from outrider.streams.replica import ReplicaCodec

pytestmark = pytest.mark.verify

DOCS = Path(__file__).parents[2] / "docs"
PROGRAM = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)
REDIS, NATS = "redis://localhost:6379", "nats://localhost:4222"
CALM = {
    r"\b1[78]\d{11}-\d+": "1783134729118-0",
    r"\b\d s ago": "0 s ago",
}
STITCH = """
import asyncio, os
from datetime import UTC, datetime
from uuid import uuid4
from outrider import Event, Outrider
from outrider.streams.replica import ReplicaChange, ReplicaCodec
from outrider.streams.redis import RedisStreams
import billing
class Changed(Event, type="crm.changed", key="customer"):
    customer: str

async def main():
    shop = Outrider(context="crm", dsn=os.environ["SHOP_DSN"])
    shop.relay("crm.out", RedisStreams("{url}", stream="customers", codec=ReplicaCodec()))
    async with shop, billing.app as app:
        await shop.migrate()
        async def change(version):
            async with shop.connect() as conn, conn.transaction():
                await shop.publish(conn, Changed(customer="x"), aggregate_kind="customer", entity_version=version)
            await shop.drain()
        await change(1)
        async def snapshot():
            await change(3)  # after the mark
            return [ReplicaChange(uuid4(), "crm.changed", "customer", "x", 2, {}, "", datetime.now(UTC))]
        rows, hwm = await billing.give(shop, snapshot)
        print(await billing.begin(rows, hwm), "stitched")
        drained = await app.drain()
        print(drained.ingested, "came in")

asyncio.run(main())
"""


class Follower(Operator):
    """Whoever follows one of the pages: the brokers are elsewhere than the page says."""

    def __init__(self, folder: Path, dsn: str, preloaded: Preloaded, urls: dict[str, str], app: str) -> None:
        super().__init__(folder, dsn, preloaded, long=True)
        self.urls = urls
        self._env |= {"COLUMNS": "110", "OUTRIDER_APP": app}

    def write(self, page: str, program: str) -> None:
        text = "\n\n".join(PROGRAM.findall(page))
        for shown, real in self.urls.items():
            text = text.replace(shown, real)
        (self._folder / program).write_text(text)

    def _run(self, command: str) -> str:
        for shown, real in self.urls.items():
            command = command.replace(shown, real)
        if command.endswith(" list"):  # just now, however slow this machine is
            with psycopg.connect(self._dsn) as conn:
                conn.execute("update outrider.stream set moved_at = clock_timestamp()")
        done = self._shell(command, self._folder, self._env)
        assert "Traceback" not in done.stderr, done.stderr
        said = done.stdout + done.stderr
        for pattern, instead in CALM.items():
            said = re.sub(pattern, instead, said)
        return said

    def says(self, page: Path) -> None:
        before = page.read_text()
        after = BLOCK.sub(self.follow, before)
        if os.environ.get("OUTRIDER_UPDATE_SNAPSHOT") == "1":
            page.write_text(after)
        else:
            assert after == before


def test_the_pages_say_what_happens(
    tmp_path: Path,
    database: str,
    other_database: str,
    preloaded: Preloaded,
    redis_server: RedisServer,
    nats_server: NatsServer,
) -> None:
    urls = {REDIS: f"{redis_server.url}/7", NATS: nats_server.url}
    shop = Follower(tmp_path, database, preloaded, urls, "shop:app")
    shop.write((DOCS / "relay.md").read_text(), "shop.py")
    shop.says(DOCS / "relay.md")
    told = shop._run("python -c 'import asyncio, shop; print(asyncio.run(shop.told()))'").strip()
    assert re.fullmatch(r"\d+-\d+", told)

    page = (DOCS / "inbox.md").read_text()
    billing = Follower(tmp_path, other_database, preloaded, urls, "billing:app")
    billing.write(page, "billing.py")
    billing.says(DOCS / "inbox.md")
    [table] = re.findall(r"^```sql\n(create table.*?)^```$", page, re.DOTALL | re.MULTILINE)
    assert table.strip() == f"{DDL.format(table='customer')};"
    with psycopg.connect(other_database, autocommit=True) as conn:
        conn.execute(table.encode())
        (tmp_path / "stitch.py").write_text(STITCH.replace("{url}", urls[REDIS]))
        billing._env["SHOP_DSN"] = database
        assert billing._run("python stitch.py") == "1 stitched\n1 came in\n"
        assert conn.execute("select entity_version from customer").fetchall() == [(3,)]
        forgetting = re.search(r"`(delete from outrider\.stream_refused where id = 1)`", page)
        assert forgetting is not None
        assert conn.execute(forgetting.group(1).encode()).rowcount == 1


@pytest.mark.parametrize(
    ("place", "codec"),
    enumerate([EnvelopeCodec(), CloudEventsCodec(), ReplicaCodec()]),
    ids=["own", "cloud", "replica"],
)
def test_the_entries_on_the_page(place: int, codec: Codec) -> None:
    samples = re.findall(r"^```json\n(.*?)^```$", (DOCS / "relay.md").read_text(), re.DOTALL | re.MULTILINE)
    event_id = UUID("01a1dee3-17b7-74fd-a81d-5bd9edeeaa5a")
    envelope = Envelope.of(
        {
            "id": event_id, "event_type": "orders.placed", "event_version": 1, "source": "shop", "target": None,
            "payload_json": '{"order_id": "7", "cents": 990}', "content_class": "internal", "channel": "outbox_default",
            "generation": 0, "workspace_id": "acme", "aggregate_kind": None, "key": "7", "entity_version": 3,
            "idempotency_key": str(event_id), "trace_context": None, "origin": None, "seq": 1,
            "occurred_at": datetime(2026, 7, 4, 3, 12, 9, 118000, tzinfo=UTC),
        }
    )  # fmt: skip
    assert len(samples) == 3
    written = json.loads(codec.encode(envelope, "1783134729118-0"))
    assert list(written.items()) == list(json.loads(samples[place]).items())


def test_the_table_of_metrics_is_whole() -> None:
    table = (DOCS / "relay.md").read_text().partition("| metric | type | labels |")[2].partition("\n\n")[0]
    rows = re.findall(r"^\| `(\w+)` \| (\w+) \| (.*?) \|", table, re.MULTILINE)
    listed = {(name.removesuffix("_total"), kind, tuple(re.findall(r"`(\w+)`", labels))) for name, kind, labels in rows}
    assert listed == names_of()
