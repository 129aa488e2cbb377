"""docs/recovery.md cannot lie: its commands run from top to bottom, and their output is compared.

To bury ten thousand events takes a minute: that is done with --long, and else what it leaves is written by SQL. All the
rest is real. After a deliberate change of a message:
OUTRIDER_UPDATE_SNAPSHOT=1 pytest -p no:xdist tests/docs/test_recovery.py
"""

from __future__ import annotations

import asyncio
import os
import re
import sys
import textwrap
from pathlib import Path
from typing import Any

import psycopg
import pytest
from tests.preloaded import Preloaded
from tests.processes import clean

from outrider import Outrider
from outrider.postgres.embedded import Embedded

pytestmark = pytest.mark.verify

PAGE = Path(__file__).parents[2] / "docs" / "recovery.md"
BLOCK = re.compile(r"^```console\n(.*?)^```$", re.DOTALL | re.MULTILINE)
COMMAND = re.compile(r"^\$ (.*)\n", re.MULTILINE)
PROGRAM = re.compile(r"^```py\n(.*?)^```$", re.DOTALL | re.MULTILINE)
UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}")
CALM = {
    r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\+00:00": "2026-07-31 04:30:00+00:00",
    r'in database "\w+"': 'in database "shop"',
}
BURIED = """
insert into outrider.delivery (
    subscription, partition, seq, event_id, event_type, ordering_key, status, head, reached, run_at, attempts, buried_at,
    last_error_code, last_error, first_failed_at, failure_history)
select 'shop.charge', 0, o.seq, o.id, o.event_type, o.aggregate_id, 'failed', false,
       false, now(), 1, clock_timestamp(), error.code, error.message, now(),
       jsonb_build_array(outrider.failure(1, 1, error.code, error.message, 'drain'))
from outrider.outbox as o
cross join lateral (select o.payload ->> 'number' as number, (o.payload ->> 'number')::int % 4 = 0 as late) as each
cross join lateral (
    select case when late then 'payment_timeout' else 'connection_refused_error' end as code,
           case when late then format('PaymentTimeout: no answer for order %s within 2 s', number)
                else format('ConnectionRefusedError: payments:443 refused order %s', number) end as message) as error
order by o.seq
"""


class Operator:
    """Whoever follows the page. Ids are those of the page, in the order in which they are first seen."""

    def __init__(self, folder: Path, dsn: str, preloaded: Preloaded, *, long: bool) -> None:
        path = os.pathsep.join([str(Path(sys.executable).parent), str(Embedded().bin), os.environ["PATH"]])
        self._folder = folder
        self._shell = preloaded.shell
        self._dsn = dsn
        self._env = clean() | {"PATH": path, "OUTRIDER_DSN": dsn, "OUTRIDER_APP": "shop:app", "TZ": "UTC"}
        self._shortcut = not long
        self._ids: dict[str, str] = {}

    def follow(self, block: re.Match[str]) -> str:
        """The block as it should be: the same commands, with what they really said."""
        return (
            "```console\n"
            + "".join(f"$ {each}\n{self._said(each)}" for each in COMMAND.findall(block.group(1)))
            + "```"
        )

    def _said(self, command: str) -> str:
        if self._shortcut and command == "python shop.py":
            self._shortcut = False
            with psycopg.connect(self._dsn) as conn:
                buried = conn.execute(BURIED).rowcount
            return f"0 handled, 0 to retry, {buried} dead letters, 0 duplicates skipped\n"
        real = {shown: found for found, shown in self._ids.items()}
        said = self._run(UUID.sub(lambda found: real[found.group()], command))
        for pattern, instead in CALM.items():
            said = re.sub(pattern, instead, said)
        said = UUID.sub(lambda found: self._shown(found.group()), said)
        return re.sub(r" +$", "", said, flags=re.MULTILINE)

    def _run(self, command: str) -> str:
        done = self._shell(command, self._folder, self._env)
        assert "Traceback" not in done.stderr, done.stderr
        assert (done.returncode == 1) == done.stderr.startswith("outrider: "), done
        return done.stdout + done.stderr

    def _shown(self, found: str) -> str:
        number = len(self._ids) + 1
        return self._ids.setdefault(found, f"01a1dee3-17b7-74fd-a81d-{number:012x}")


async def run_blocks(page: str, dsn: str) -> None:
    """What the page shows of Python and SQL runs, too. By then there is nothing left to do."""
    [statements] = re.findall(r"^```sql\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    with psycopg.connect(dsn, autocommit=True) as conn:
        row = conn.execute("select event_id from outrider.delivery").fetchone()
        assert row is not None
        for each in statements.replace("<event id>", str(row[0])).splitlines():
            conn.execute(each.encode())
    app = Outrider(context="shop", dsn=dsn)
    names: dict[str, Any] = {"app": app, "event_id": row[0], "OrderPlaced": "orders.placed", "print": lambda *_: None}
    exec(f"async def block():\n{textwrap.indent(PROGRAM.findall(page)[1], '    ')}", names)
    async with app:
        await names["block"]()


@pytest.mark.timeout(1200)
def test_the_page_says_what_happens(tmp_path: Path, empty_database: str, preloaded: Preloaded, long: bool) -> None:
    page, folder = PAGE.read_text(), tmp_path / "shop"
    folder.mkdir()
    (folder / "shop.py").write_text(PROGRAM.findall(page)[0])
    played = BLOCK.sub(Operator(folder, empty_database, preloaded, long=long).follow, page)
    if os.environ.get("OUTRIDER_UPDATE_SNAPSHOT") == "1":
        PAGE.write_text(played)
    assert played == page or os.environ.get("OUTRIDER_UPDATE_SNAPSHOT") == "1"
    asyncio.run(run_blocks(page, empty_database))
    with psycopg.connect(empty_database) as conn:
        charged = "select count(*), count(distinct number), sum(cents) filter (where number = 8484) from charge"
        assert conn.execute(charged).fetchone() == (10_000, 9_999, 8_584)
        assert conn.execute("select status, count(*) from outrider.delivery group by 1").fetchall() == [
            ("discarded", 1)
        ]
        assert conn.execute("select payload ->> 'cents' from outrider.outbox where seq = 8484").fetchone() == ("0",)
