"""The projection across two contexts: content, bytes, order, late readers, the dedup race, and no import between them."""

from __future__ import annotations

import ast
import asyncio
import importlib.util
import json
import subprocess
import sys
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from examples.worlds_platform import race
from examples.worlds_platform.atlas.events import ScanCompleted as View
from examples.worlds_platform.atlas.repository import Snapshot, SnapshotRepository
from examples.worlds_platform.composition import INDEXER, Platform, compose, opened
from examples.worlds_platform.worlds.events import Finding, ScanCompleted, Spot
from examples.worlds_platform.worlds.survey import UnknownWorld
from tests.processes import Begin, clean, processes, until

from outrider import Envelope, Outrider, PublishRefused
from outrider.doctor.doctor import examine_all
from outrider.testing import dispatched

pytestmark = pytest.mark.verify

ROOT = Path(__file__).parents[2]
EXAMPLE = "examples.worlds_platform"
TERRA, NOX = UUID("00000000-0000-4000-8000-00000000000a"), UUID("00000000-0000-4000-8000-00000000000b")
FIRST, SECOND, THIRD = (UUID(int=n) for n in (1, 2, 3))
NOON = datetime(2031, 5, 4, 12, 30, 0, 250_000, tzinfo=timezone(timedelta(hours=2)))
CORAL = Finding(
    title='récif "vivant" 🪸\n深海',
    kind="life",
    confidence=Decimal("0.930"),
    spot=Spot(latitude=Decimal("-12.50"), longitude=Decimal("130.25")),
)
ORE = Finding(title="Erz", kind="mineral", confidence=Decimal("1E+1"))


async def scan(
    platform: Platform,
    world_id: UUID,
    scan_id: UUID,
    habitability: str,
    *findings: Finding,
    audience: str | None = None,
) -> Envelope:
    async with platform.worlds.connect() as conn, conn.transaction():
        return await platform.survey.complete_scan(
            conn,
            world_id,
            scan_id,
            completed_at=NOON,
            habitability=Decimal(habitability),
            findings=findings,
            audience=audience,
        )


async def seed(platform: Platform) -> list[Envelope]:
    async with platform.worlds.connect() as conn, conn.transaction():
        await platform.survey.discover(conn, TERRA, "Terra Ⅱ")
        await platform.survey.discover(conn, NOX, "Nøx")
    return [
        await scan(platform, TERRA, FIRST, "0.1", ORE),
        await scan(platform, NOX, SECOND, "0.020"),
        await scan(platform, TERRA, THIRD, "0.990", CORAL, ORE),
    ]


async def known(platform: Platform) -> dict[str, Snapshot]:
    async with platform.atlas.connect() as conn:
        return {each.world_name: each for each in await SnapshotRepository(conn).all()}


def rows(dsn: str, query: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(dsn) as conn:
        return conn.execute(query.encode()).fetchall()


# The projection


async def test_the_atlas_knows_what_the_worlds_have_published(database: str) -> None:
    async with opened(compose(database)) as platform:
        async with dispatched(platform.atlas):
            await seed(platform)
        atlas = await known(platform)
    assert atlas.keys() == {"Terra Ⅱ", "Nøx"}
    terra = atlas["Terra Ⅱ"]
    assert terra.world_id == TERRA
    assert terra.scan_id == THIRD
    assert terra.number == 2
    assert str(terra.habitability) == "0.990"
    assert terra.titles == ['récif "vivant" 🪸\n深海', "Erz"]
    assert json.loads(terra.snapshot) == {
        "world_id": "00000000-0000-4000-8000-00000000000a",
        "world_name": "Terra Ⅱ",
        "scan_id": "00000000-0000-0000-0000-000000000003",
        "number": 2,
        "completed_at": "2031-05-04T12:30:00.250000+02:00",
        "habitability": "0.990",
        "findings": [
            {
                "title": 'récif "vivant" 🪸\n深海',
                "kind": "life",
                "confidence": "0.930",
                "spot": {"latitude": "-12.50", "longitude": "130.25"},
            },
            {"title": "Erz", "kind": "mineral", "confidence": "1E+1", "spot": None},
        ],
    }
    nox = atlas["Nøx"]
    assert (nox.world_id, nox.scan_id, nox.number, str(nox.habitability), nox.titles) == (NOX, SECOND, 1, "0.020", [])
    assert rows(database, "select name, scans, habitability::text from worlds.world order by name") == [
        ("Nøx", 1, "0.020"),
        ("Terra Ⅱ", 2, "0.990"),
    ]
    assert rows(database, "select id, world_id, number, jsonb_array_length(findings) from worlds.scan order by id") == [
        (FIRST, TERRA, 1, 1),
        (SECOND, NOX, 1, 0),
        (THIRD, TERRA, 2, 2),
    ]


async def test_the_snapshot_is_the_payload_byte_for_byte(database: str) -> None:
    async with opened(compose(database)) as platform:
        async with dispatched(platform.atlas):
            published = await seed(platform)
        atlas = await known(platform)
    log = rows(database, "select payload ->> 'scan_id', convert_to(payload::text, 'UTF8') from outrider.outbox")
    logged: dict[str, bytes] = dict(log)
    projected = rows(database, "select scan_id::text, convert_to(snapshot, 'UTF8') from atlas.world_snapshot")
    assert len(logged) == 3
    assert {scan_id for scan_id, _ in projected} == {str(SECOND), str(THIRD)}
    for scan_id, snapshot in projected:
        assert snapshot == logged[scan_id]
    assert ScanCompleted.model_validate_json(atlas["Terra Ⅱ"].snapshot) == published[2].decode(ScanCompleted)


async def test_a_scan_that_rolls_back_is_known_to_nobody(database: str) -> None:
    async with opened(compose(database)) as platform:
        async with dispatched(platform.atlas):
            await seed(platform)
            with pytest.raises(UnknownWorld):
                await scan(platform, uuid4(), uuid4(), "0.5")
            with pytest.raises(psycopg.errors.UniqueViolation):
                await scan(platform, TERRA, FIRST, "0.5")
        async with platform.atlas.connect() as conn:
            assert await SnapshotRepository(conn).numbers(TERRA) == [1, 2]
        assert str((await known(platform))["Terra Ⅱ"].habitability) == "0.990"


async def test_scans_of_a_world_are_indexed_in_their_order(database: str) -> None:
    """While publishers compete for the worlds and a worker's sessions compete for the partitions."""
    worlds = {uuid4(): f"world {n}" for n in range(6)}
    async with opened(compose(database)) as platform:
        async with platform.worlds.connect() as conn, conn.transaction():
            for world_id, name in worlds.items():
                await platform.survey.discover(conn, world_id, name)
        async with dispatched(platform.atlas, timeout=60):
            await asyncio.gather(
                *(scan(platform, world_id, uuid4(), f"0.{n}", ORE) for n in range(1, 9) for world_id in worlds)
            )
        async with platform.atlas.connect() as conn:
            for world_id in worlds:
                assert await SnapshotRepository(conn).numbers(world_id) == list(range(1, 9))
        assert [each.number for each in (await known(platform)).values()] == [8] * 6


async def test_a_late_subscriber_gets_the_same(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUTRIDER_ALLOW_ORPHANS", "1")  # a second indexer on purpose
    async with opened(compose(database)) as platform:
        async with dispatched(platform.atlas):
            await seed(platform)
        before = await known(platform)
    with psycopg.connect(database) as conn:
        conn.execute("truncate atlas.world_snapshot, atlas.indexed")
    async with opened(compose(database, name="atlas.rebuilt_indexer", start="beginning")) as platform:
        assert (await platform.atlas.drain(raise_on_failure=True)).handled == 3
        assert len(before) == 2
        assert await known(platform) == before
        async with platform.atlas.connect() as aconn:
            assert await SnapshotRepository(aconn).numbers(TERRA) == [1, 2]


async def test_an_event_for_another_context_is_not_seen(database: str) -> None:
    async with opened(compose(database)) as platform:
        async with dispatched(platform.atlas):
            await seed(platform)
            await scan(platform, NOX, uuid4(), "0.7", CORAL, audience="worlds")
            await scan(platform, TERRA, (last := uuid4()), "0.8", audience="atlas")
        atlas = await known(platform)
        assert (atlas["Nøx"].number, atlas["Nøx"].scan_id) == (1, SECOND)
        assert (atlas["Terra Ⅱ"].number, atlas["Terra Ⅱ"].scan_id) == (3, last)
        with pytest.raises(PublishRefused, match="target"):
            await scan(platform, NOX, uuid4(), "0.7", audience="atlsa")


async def test_the_view_cannot_be_published(database: str) -> None:
    async with opened(compose(database)) as platform:
        [first, *_] = await seed(platform)
        view = first.decode(View)
        assert (view.scan_id, view.findings[0].title) == (FIRST, "Erz")
        async with platform.atlas.connect() as conn:
            with pytest.raises(PublishRefused, match="foreign"):
                await platform.atlas.publish(conn, view)


# The dedup race


async def test_of_all_that_race_one_has_an_effect_and_the_others_concede(database: str) -> None:
    async with opened(compose(database)) as platform, dispatched(platform.atlas):
        await seed(platform)
    result = await race.with_receipts(database, TERRA)
    assert result == race.Result(announced=256, handled=1, duplicates=255, effects=1)
    assert rows(database, "select count(*) from outrider.outbox") == [(3 + 256,)]


async def test_a_handler_that_looks_first_doubles_in_the_same_race(database: str) -> None:
    async with opened(compose(database)) as platform, dispatched(platform.atlas):
        await seed(platform)
    result = await race.with_a_look_first(database, TERRA)
    assert result == race.Result(announced=256, handled=256, duplicates=0, effects=race.SESSIONS)


# Two releases side by side


class Releases:
    """Workers as processes, and the apps that publish."""

    def __init__(self, dsn: str, begin: Begin) -> None:
        self.dsn, self.begin = dsn, begin
        self.scans: dict[int, set[UUID]] = {41: set(), 42: set()}
        """By release, what it has published."""

    def start(self, release: int) -> subprocess.Popen[str]:
        """A worker that is up, and hears."""
        env = {"OUTRIDER_DSN": self.dsn, "OUTRIDER_GENERATION": str(release)}
        command = [sys.executable, "-m", "outrider", "worker", "--app", f"{EXAMPLE}.service:atlas"]
        process = self.begin(command, ROOT, env)
        until(
            lambda: rows(self.dsn, f"select from outrider.worker where generation = {release} and listening"), process
        )
        return process

    async def publish(self, release: int, scans: int) -> None:
        async with opened(compose(self.dsn, generation=release)) as platform:
            for n in range(scans):
                scan_id = uuid4()
                await scan(platform, (TERRA, NOX)[n % 2], scan_id, "0.5", ORE)
                self.scans[release].add(scan_id)

    async def indexed(self, *releases: int) -> dict[UUID, list[int]]:
        """Once all scans of these releases are indexed: by scan, who has done it."""
        wanted = set[UUID]().union(*(self.scans[each] for each in releases))
        async with await psycopg.AsyncConnection.connect(self.dsn, autocommit=True) as conn, asyncio.timeout(60):
            while True:
                found = await SnapshotRepository(conn).releases()
                if wanted <= found.keys():
                    return found
                await asyncio.sleep(0.05)


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Of the command line."""
    started = [sys.executable, "-m", "outrider", *arguments]
    return subprocess.run(started, cwd=ROOT, env=clean(), capture_output=True, text=True, timeout=200, check=False)


@pytest.mark.timeout(180)
async def test_a_rolling_deploy(database: str) -> None:
    """Takes some 20 s: worker processes, and one of them notices within 10 s that events were moved to it."""
    platform = compose(database, generation=41)
    async with opened(platform), platform.worlds.connect() as conn, conn.transaction():
        await platform.survey.discover(conn, TERRA, "Terra Ⅱ")
        await platform.survey.discover(conn, NOX, "Nøx")
    with processes() as begin:
        releases = Releases(database, begin)
        old = await asyncio.to_thread(releases.start, 41)
        with psycopg.connect(database, autocommit=True) as listening:
            listening.execute("listen outbox_gen_41")
            await releases.publish(41, 4)
            assert {each.payload for each in listening.notifies(timeout=60, stop_after=1)} == {"worlds.scan_completed"}
        await releases.indexed(41)

        # Both run, and both publish.
        new = await asyncio.to_thread(releases.start, 42)
        await asyncio.gather(releases.publish(41, 6), releases.publish(42, 6))
        by = await releases.indexed(41, 42)
        assert {tuple(by[each]) for each in releases.scans[41]} == {(41,)}
        assert {tuple(by[each]) for each in releases.scans[42]} == {(42,)}

        # The old worker is killed. What its release still publishes waits, and the doctor says what moves it.
        before = set(releases.scans[41])
        old.kill()
        old.wait()
        with psycopg.connect(database, autocommit=True) as conn_:
            conn_.execute("update outrider.worker set seen_at = seen_at - interval '1 minute' where generation = 41")
        await releases.publish(41, 2)
        await releases.publish(42, 2)
        by = await releases.indexed(42)
        left = releases.scans[41] - before
        assert by.keys() == before | releases.scans[42]
        doctor = await asyncio.to_thread(command, "doctor", "--json", "--dsn", database)
        [found] = [each for each in json.loads(doctor.stdout)["findings"] if each["check"] == "generations"]
        move = found["advice"].partition(": outrider ")[2]
        assert move == f"generations move 41 42 --subscription {INDEXER}"
        moved = await asyncio.to_thread(command, *move.split(), "--dsn", database)
        assert moved.returncode == 0, moved.stderr
        by = await releases.indexed(41, 42)
        assert {tuple(by[each]) for each in left} == {(42,)}
        assert all(len(each) == 1 for each in by.values()), "nothing is doubled"
        assert len(by) == 12 + 8
        new.terminate()
        assert await asyncio.to_thread(new.wait, 30) == 0


# Two contexts that import nothing of each other


def modules(package: str) -> list[str]:
    folder = ROOT / package.replace(".", "/")
    return [package, *(f"{package}.{file.stem}" for file in sorted(folder.glob("*.py")) if file.stem != "__init__")]


def imports(module: str) -> set[str]:
    """Everything that a module names in an import, wherever it stands, with relative names resolved."""
    spec = importlib.util.find_spec(module)
    assert spec is not None
    assert spec.origin is not None
    found: set[str] = set()
    for node in ast.walk(ast.parse(Path(spec.origin).read_text())):
        if isinstance(node, ast.Import):
            found |= {each.name for each in node.names}
        elif isinstance(node, ast.ImportFrom):
            package = spec.name if spec.submodule_search_locations else spec.parent
            name = "." * node.level + (node.module or "")
            origin = importlib.util.resolve_name(name, package)
            found |= {origin, *(f"{origin}.{each.name}" for each in node.names)}
    return found


@pytest.mark.parametrize("context", ["worlds", "atlas"])
def test_a_context_names_nothing_of_the_example_but_itself(context: str) -> None:
    own = f"{EXAMPLE}.{context}"
    assert len(modules(own)) > 2
    named = set[str]().union(*(imports(module) for module in modules(own)))
    assert "outrider.Event" in named
    assert [name for name in named if name.startswith("examples") and not f"{name}.".startswith(f"{own}.")] == []
    assert f"{own}.events" in imports(f"{EXAMPLE}.race") | imports(f"{EXAMPLE}.composition")


WALL = """
import importlib, sys
wall, *modules = sys.argv[1:]
class Wall:
    def find_spec(self, name, path=None, target=None):
        if name == wall or name.startswith(wall + "."):
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Wall())
for module in modules:
    importlib.import_module(module)
"""


def import_without(wall: str, *wanted: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", WALL, wall, *wanted]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=200, check=False)


@pytest.mark.parametrize(("context", "other"), [("worlds", "atlas"), ("atlas", "worlds")])
def test_a_context_is_importable_without_the_other(context: str, other: str) -> None:
    wall = f"{EXAMPLE}.{other}"
    done = import_without(wall, *modules(f"{EXAMPLE}.{context}"))
    assert (done.returncode, done.stderr) == (0, "")
    assert f"ModuleNotFoundError: {wall}" in import_without(wall, f"{EXAMPLE}.composition").stderr


# As a reader runs it


def test_the_example_runs_again_and_again(database: str) -> None:
    for number in (1, 2):
        command = [sys.executable, "-m", EXAMPLE, database]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=200, check=False)
        assert (done.returncode, done.stderr) == (0, "")
        assert f"Gaïa: scan {number}, habitability 0.98, found récif vivant 🪸" in done.stdout
        assert "1 handled, 255 duplicates skipped, indexed 1x" in done.stdout
        assert "256 handled, 0 duplicates skipped, indexed 16x" in done.stdout


# Whose tables are whose


async def test_the_doctor_finds_a_role_of_the_atlas_that_may_write_the_tables_of_worlds(database: str) -> None:
    async def found(app: Outrider) -> list[tuple[str, str]]:
        async with app.connect() as conn:
            await conn.set_autocommit(True)
            told = await examine_all(app, conn, app.settings.schema)
            await conn.set_autocommit(False)
        return [(each.severity.name, each.found) for each in told if each.check == "owns"]

    def execute(statements: str) -> None:
        with psycopg.connect(database, autocommit=True) as conn:
            conn.execute(statements.encode())

    role = f"atlas_{uuid4().hex}"
    async with opened(compose(database)) as platform:
        assert await found(platform.worlds) == [("ok", "only roles of worlds can write in worlds")]
        execute(f"create role {role}; grant select on all tables in schema worlds to {role}")
        try:
            assert await found(platform.worlds) == [("ok", "only roles of worlds can write in worlds")]
            execute(f"grant insert on all tables in schema worlds to {role}")
            told = f"{role} may insert on worlds: scan, world: granted to it"
            assert await found(platform.worlds) == [("warning", told)]
            assert await found(platform.atlas) == [("ok", "only roles of atlas can write in atlas")]
        finally:
            execute(f"drop owned by {role}; drop role {role}")
