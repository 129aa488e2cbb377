"""What the README and the guide show is run as it stands there; their links lead somewhere."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest
from tests.postgres.embedded.conftest import place
from tests.postgres.roles.house import before
from tests.postgres.roles.house import opened as made
from tests.tiers import one_in_test

from outrider import Bury, Event, HandlerContext, Job, JobContext, Outrider, RetryPolicy
from outrider.errors import SchemaMismatch
from outrider.postgres.statement import statement
from outrider.signals import Fired, JobsCompleted
from outrider.testing import expect

__all__ = ["place"]

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


def python_blocks(page: Path) -> str:
    return "\n\n".join(re.findall(r"^```python\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE))


@pytest.mark.parametrize("page", one_in_test(["README.md", "docs/guide.md", "docs/integrations.md"], "README.md"))
def test_the_code_on_the_page_runs(page: str, place: Path) -> None:
    program = place / "program.py"
    program.write_text(python_blocks(ROOT / page))
    run = subprocess.run([sys.executable, program], cwd=place, capture_output=True, text=True, timeout=200)
    assert run.returncode == 0, run.stderr
    expected = {
        "README.md": "1 handled",
        "docs/guide.md": (ROOT / "docs/guide.md").read_text().partition("then:\n\n```\n")[2].partition("```")[0],
        "docs/integrations.md": "2 handled, 0 to retry, 0 dead letters, 0 duplicates skipped\n2 invoices",
    }
    assert expected[page]
    assert expected[page] in run.stdout


class Granted(Event, type="docs.granted"):
    name: str


async def test_the_rights_that_an_application_had_are_enough_and_no_more(database: str) -> None:
    """The role opens the app, publishes and reads; it cannot write the two columns that the cursor rests on."""
    with psycopg.connect(database, autocommit=True) as owner:
        role = f"role_{owner.info.dbname}"
        app = Outrider(context="docs", dsn=psycopg.conninfo.make_conninfo(database, user=role))
        reader = app.reader(Granted, name="docs.reader")
        fails, buried = [True], ["dead"]

        @app.handler(Granted, name="docs.handler", retry=RetryPolicy(base="1ms"))
        async def handle(event: Granted, ctx: HandlerContext) -> None:
            if fails and event.name == "sql":
                fails.clear()
                raise ValueError("once")
            if event.name in buried:
                raise Bury("until it is replayed")
            await ctx.tx.execute("select 1")

        owner.execute("select outrider.register('docs.reader', 'reader', 'docs', null)")
        owner.execute("select outrider.register('docs.handler', 'handler', 'docs', '{docs.granted}')")
        owner.execute(f"create role {role} login".encode())
        try:
            with pytest.raises(SchemaMismatch, match=r"docs/roles\.md"):
                async with app:
                    pass
            owner.execute(re.sub(r"\bapp\b", role, before("app")).encode())
            owner.execute(statement("schema/inherit_grants", "outrider"))
            async with app:
                async with app.connect() as conn, conn.transaction():
                    await app.publish(conn, Granted(name="python"))
                    await conn.execute("select outrider.publish('docs.granted', '{\"name\": \"sql\"}')")
                async with app.connect() as conn, conn.transaction():
                    batch = await reader.take(conn)
                    assert [e.decode(Granted).name for e in batch.events] == ["python", "sql"]
                async with app.worker():
                    pass
                while owner.execute("select 1 from outrider.event_handled").rowcount < 2:
                    await app.drain()
                assert not fails
                async with app.connect() as conn:
                    dead = await app.publish(conn, Granted(name="dead"))
                await app.drain()
                buried.clear()
                assert [each.outcome for each in await app.replay(dead.id)] == ["replayed"]
                assert (await app.drain()).handled == 1
                async with app.connect() as conn:
                    for column, value in (("tx", "'3'"), ("seq", "7")):
                        with pytest.raises(psycopg.errors.InsufficientPrivilege):
                            await conn.execute(
                                f"""insert into outrider.outbox ({column}, event_type, source, payload)
                                    overriding system value values ({value}, 'a.b', 'a', '{{}}')""".encode()
                            )
                        await conn.rollback()
        finally:
            owner.execute(f"drop owned by {role}; drop role {role}".encode())


class Chore(Job, type="docs.chore", key="n"):
    n: int


@pytest.mark.verify
async def test_the_rights_of_a_worker_are_enough_for_jobs(database: str) -> None:
    """Enqueued in Python, in SQL and by the clock, made of events; limited, failing, cancelled, handed back, renewed."""

    def declared(dsn: str) -> Outrider:
        app, failed = Outrider(context="docs", dsn=dsn), set[int]()

        @app.job(Chore, concurrency=3, key_concurrency=1, lease=1, retry=RetryPolicy(base="1ms", cap="1ms"), keep="1d")
        async def chore(job: Chore, ctx: JobContext) -> None:
            if job.n == 1 and job.n not in failed:
                failed.add(job.n)
                raise ValueError("once")
            if job.n == 2:
                ctx.progress(0.5)
                await asyncio.sleep(1.5)

        @app.job(on=Granted, name="docs.of_events")
        async def of_events(event: Granted) -> None:
            pass

        app.schedule("* * * * * *", Chore(n=3), name="docs.every_second")
        return app

    async with declared(database) as owning:
        await owning.migrate()
    with psycopg.connect(database, autocommit=True) as owner, made(owner) as house:
        app = declared(house.dsn("worker"))
        long = expect(app, JobsCompleted, lambda each: any(run.key == "2" for run, _ in each.details()))
        async with app, app.worker(), expect(app, Fired), long, app.connect() as conn:
            await app.enqueue_many(conn, [Chore(n=n) for n in (1, 1, 2)])
            await app.enqueue(conn, Chore(n=4), unique_key="four", on_conflict="debounce")
            await conn.execute("select outrider.enqueue('docs.chore', '{\"n\": 5}')")
            await app.publish(conn, Granted(name="job"))
        left = owner.execute("select last_error from outrider.delivery where status = 'failed'").fetchall()
        assert left == []
        assert owner.execute("select 1 from outrider.event_handled").rowcount >= 6


def test_the_front_page_is_short() -> None:
    """A screen and a half, with an example of about twenty lines."""
    example = [line for line in python_blocks(ROOT / "README.md").splitlines() if line.strip()]
    assert len(example) <= 22
    assert len((ROOT / "README.md").read_text().splitlines()) <= 90


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for target, _, anchor in (link.partition("#") for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text())):
        if target.startswith("http"):
            continue
        file = (page.parent / target).resolve() if target else page
        assert file.exists(), f"{page.name} links to {target}, which is not there"
        if anchor and file.suffix == ".md":
            headings = {
                re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-")
                for heading in re.findall(r"^#+ (.*)$", file.read_text(), re.MULTILINE)
            }
            assert anchor in headings, f"{page.name} links to #{anchor} of {file.name}, which is not there"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_named_tests_exist(page: Path) -> None:
    """`tests/x.py::name` on a page is a test that exists."""
    for file, name in re.findall(r"(tests/[\w/]+\.py)::(\w+)", page.read_text()):
        assert f"def {name}(" in (ROOT / file).read_text(), f"{page.name} names {file}::{name}"
