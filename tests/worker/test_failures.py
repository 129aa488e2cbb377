"""Failures: isolated, parked, retried in order, buried; and handlers that do what they must not."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from tests.worker.shop import SOON, Placed, Shop, opened

from outrider import Backoff, Bury, HandlerContext, Retry, RetryPolicy, Snooze, SyncHandlerContext, TerminalError
from outrider.errors import CursorError
from outrider.signals import Buried, Failed, RetryScheduled, Settled, Signal, Troubled

pytestmark = pytest.mark.also_on(15)


def failing(error: BaseException) -> Callable[[], None]:
    def fail() -> None:
        raise error

    return fail


def handled_by(order: Any, **options: Any) -> Callable[[Shop], None]:
    def declare(shop: Shop) -> None:
        shop.app.handler(Placed, name="shop.effect", retry=SOON, order=order, **options)(shop.effect)

    return declare


async def test_a_failure_is_parked_and_the_others_go_on(database: str) -> None:
    async with opened(database) as shop:
        shop.wrong["b1"] = failing(ValueError("no stock"))
        await shop.publish("a1", "b1", "c1")
        drained = await shop.app.drain()
        assert (drained.handled, drained.to_retry, drained.buried) == (2, 1, 0)
        assert await shop.effects() == ["a1", "c1"]
        assert shop.calls.count("b1") == 1, "one attempt is one call"
        parked = await shop.parked()
        assert parked.keys() == {"b1"}
        row = parked["b1"]
        assert (row["status"], row["attempts"], row["last_error_code"]) == ("pending", 1, "value_error")
        [entry] = row["failure_history"]
        assert entry["message"] == "ValueError: no stock"
        assert (entry["cycle"], entry["attempt"], entry["code"]) == (1, 1, "value_error")
        assert entry.keys() == {"cycle", "attempt", "at", "code", "message", "worker", "batch"}
        assert len(await shop.rows("select 1 from outrider.event_handled")) == 2


async def test_a_retry_that_works_leaves_nothing_behind(database: str) -> None:
    async with opened(database) as shop:
        shop.wrong["a1"] = failing(ValueError())
        await shop.publish("a1")
        await shop.app.drain()
        assert (await shop.app.drain()).handled == 0, "not due yet"
        await shop.make_due()
        del shop.wrong["a1"]
        attempts: list[int] = []

        def note(signal: Signal) -> None:
            if isinstance(signal, Settled):
                attempts.extend(each.attempt for each in signal.details())

        shop.app.signals.listen(note)
        assert (await shop.app.drain()).handled == 1
        assert attempts == [2]
        assert await shop.effects() == ["a1"]
        assert not await shop.parked()


async def test_the_last_attempt_buries(database: str) -> None:
    def declare(shop: Shop) -> None:
        shop.app.handler(Placed, name="shop.effect", retry=Backoff.table("30s", "5m"))(shop.effect)

    async with opened(database, declare) as shop:
        seen: list[Signal] = []
        shop.app.signals.listen(seen.append)
        shop.wrong["a1"] = failing(ValueError("for ever"))
        await shop.publish("a1", "a2", "b1")
        for round_ in range(3):
            await shop.app.drain()
            parked = await shop.parked()
            if round_ < 2:
                delay = parked["a1"]["run_at"] - (await shop.rows("select now()"))[0]["now"]
                assert timedelta(0) < delay <= [timedelta(seconds=30), timedelta(minutes=5)][round_]
                assert parked["a2"]["attempts"] == 0
                await shop.make_due()
        assert parked.keys() == {"a1"}
        assert (parked["a1"]["status"], parked["a1"]["attempts"]) == ("failed", 3)
        assert [entry["attempt"] for entry in parked["a1"]["failure_history"]] == [1, 2, 3]
        assert await shop.effects() == ["b1", "a2"], "what waited behind it goes on once it is buried"
        assert [type(each) for each in seen if isinstance(each, RetryScheduled | Buried)] == [
            RetryScheduled,
            RetryScheduled,
            Buried,
        ]


@pytest.mark.parametrize("error", [Bury("why"), TerminalError("why"), psycopg.errors.UniqueViolation("why")])
async def test_what_cannot_be_helped_is_buried_at_once(database: str, error: Exception) -> None:
    async with opened(database) as shop:
        shop.wrong["a1"] = failing(error)
        await shop.publish("a1", "a2")
        assert (await shop.app.drain()).buried == 1
        assert (await shop.parked())["a1"]["status"] == "failed"
        assert await shop.effects() == ["a2"], "a dead letter holds up nobody"


async def test_snooze_uses_no_attempt_and_retry_has_its_own_delay(database: str) -> None:
    async with opened(database) as shop:
        shop.wrong["a1"] = failing(Snooze("10m"))
        shop.wrong["b1"] = failing(Retry("20m", "not yet"))
        await shop.publish("a1", "b1")
        await shop.app.drain()
        parked = await shop.parked()
        [row] = await shop.rows("select now()")
        assert (parked["a1"]["attempts"], parked["b1"]["attempts"]) == (0, 1)
        assert timedelta(minutes=9) < parked["a1"]["run_at"] - row["now"] <= timedelta(minutes=10)
        assert timedelta(minutes=19) < parked["b1"]["run_at"] - row["now"] <= timedelta(minutes=20)


@pytest.mark.parametrize(("before", "after"), [("key", "total"), ("total", "key"), ("none", "key"), ("none", "total")])
async def test_another_order_applies_to_what_waits_already(database: str, before: str, after: str) -> None:
    """The release that declares it finds events that failed under the order before."""
    async with opened(database, handled_by(before)) as shop:
        shop.wrong["a1"] = failing(ValueError())
        await shop.publish("a1")
        await shop.app.drain()
        assert (await shop.parked()).keys() == {"a1"}
        await shop.publish("b1")
    async with opened(database, handled_by(after)) as shop:
        shop.wrong["a1"] = failing(ValueError())
        await shop.publish("a2", "b2")
        await shop.app.drain()
        assert await shop.effects() == ([] if after == "total" else ["b1", "b2"])
        await shop.publish("a3")
        shop.wrong.clear()
        await shop.make_due()
        await shop.app.drain()
        effects = await shop.effects()
        assert [each for each in effects if each[0] == "a"] == ["a1", "a2", "a3"]
        if after == "total":
            assert effects == ["a1", "b1", "a2", "b2", "a3"]


async def test_without_an_order_nothing_waits_any_more(database: str) -> None:
    async with opened(database) as shop:
        shop.wrong["a1"] = failing(ValueError())
        await shop.publish("a1", "a2", "b1", "a3")
        await shop.app.drain()
        heads = {name: row["head"] for name, row in (await shop.parked()).items()}
        assert heads == {"a1": True, "a2": False, "a3": False}
    async with opened(database, handled_by("none")) as shop:
        await shop.app.drain()
        assert sorted(await shop.effects()) == ["a2", "a3", "b1"]
        assert (await shop.parked()).keys() == {"a1"}


async def test_another_order_applies_to_dead_letters_that_are_replayed(database: str) -> None:
    async with opened(database) as shop:
        shop.wrong["a1"] = failing(Bury("why"))
        await shop.publish("a1")
        await shop.app.drain()
        [dead] = (await shop.parked()).values()
        assert dead["status"] == "failed"
    async with opened(database, handled_by("total")) as shop:
        shop.wrong["a1"] = failing(ValueError())
        await shop.app.replay(dead["event_id"])
        await shop.app.drain()
        await shop.publish("b1")
        await shop.app.drain()
        assert await shop.effects() == [], "everything waits for the one that failed again"
        shop.wrong.clear()
        await shop.make_due()
        await shop.app.drain()
        assert await shop.effects() == ["a1", "b1"]


async def test_total_order_is_refused_where_there_are_partitions(database: str) -> None:
    async with opened(database, handled_by("key", partitions=2)):
        pass
    with pytest.raises(CursorError, match="has 2 partitions") as caught:
        async with opened(database, handled_by("total")):
            pass
    assert "another name" in str(caught.value)


async def test_later_events_of_a_key_wait_behind_a_failed_one(database: str) -> None:
    async with opened(database) as shop:
        shop.wrong["a1"] = failing(ValueError())
        await shop.publish("a1", "a2", "b1")
        await shop.app.drain()
        await shop.publish("a3", "b2")
        await shop.app.drain()
        assert await shop.effects() == ["b1", "b2"]
        parked = await shop.parked()
        assert {name: row["head"] for name, row in parked.items()} == {"a1": True, "a2": False, "a3": False}
        assert {name: row["attempts"] for name, row in parked.items()} == {"a1": 1, "a2": 0, "a3": 0}
        await shop.make_due()
        await shop.app.drain()
        assert shop.calls.count("a2") == 0, "only the head of a key is ever retried"
        assert (await shop.parked())["a1"]["attempts"] == 2
        del shop.wrong["a1"]
        await shop.make_due()
        await shop.publish("a4")
        await shop.app.drain()
        assert await shop.effects() == ["b1", "b2", "a1", "a2", "a3", "a4"]
        assert not await shop.parked()


async def test_one_in_the_midst_of_the_line_fails(database: str) -> None:
    async with opened(database) as shop:
        shop.wrong["a1"] = failing(ValueError())
        await shop.publish("a1", "a2", "a3", "a4")
        await shop.app.drain()
        del shop.wrong["a1"]
        shop.wrong["a3"] = failing(ValueError())
        await shop.make_due()
        await shop.app.drain()
        assert await shop.effects() == ["a1", "a2"]
        parked = await shop.parked()
        assert {name: (row["head"], row["attempts"]) for name, row in parked.items()} == {
            "a3": (True, 1),
            "a4": (False, 0),
        }
        del shop.wrong["a3"]
        await shop.make_due()
        await shop.app.drain()
        assert await shop.effects() == ["a1", "a2", "a3", "a4"]


async def test_without_order_only_the_failed_one_waits(database: str) -> None:
    async with opened(database, handled_by("none")) as shop:
        shop.wrong["a1"] = failing(ValueError())
        await shop.publish("a1", "a2")
        await shop.app.drain()
        assert await shop.effects() == ["a2"]
        assert (await shop.parked()).keys() == {"a1"}


async def test_in_total_order_everything_waits(database: str) -> None:
    async with opened(database, handled_by("total")) as shop:
        shop.wrong["b1"] = failing(ValueError())
        await shop.publish("a1", "b1", "c1")
        await shop.app.drain()
        await shop.publish("d1")
        await shop.app.drain()
        assert await shop.effects() == ["a1"]
        assert "d1" not in await shop.parked(), "the cursor waits"
        del shop.wrong["b1"]
        await shop.make_due()
        await shop.app.drain()
        assert await shop.effects() == ["a1", "b1", "c1", "d1"]


@pytest.mark.verify
async def test_a_thousand_wait_in_line_and_go_on_in_order(database: str) -> None:
    async with opened(database) as shop:
        names = [f"a{n}" for n in range(1, 1001)]
        shop.wrong["a1"] = failing(ValueError())
        await shop.publish(*names)
        await shop.app.drain()
        assert len(await shop.parked()) == 1000
        shop.wrong.clear()
        await shop.make_due()
        await shop.app.drain()
        assert await shop.effects() == names


async def test_many_failures_in_one_batch(database: str) -> None:
    async with opened(database, handled_by("none")) as shop:
        names = [f"{chr(97 + n % 26)}{n}" for n in range(200)]
        for name in names[::7]:
            shop.wrong[name] = failing(ValueError())
        await shop.publish(*names)
        drained = await shop.app.drain()
        assert (drained.handled, drained.to_retry) == (171, 29)
        assert sorted(await shop.effects()) == sorted(set(names) - set(names[::7]))
        assert all(row["attempts"] == 1 for row in (await shop.parked()).values())


async def test_partitions_double_while_events_are_parked(database: str) -> None:
    async with opened(database) as shop:
        keys = "abcdefgh"
        for key in keys:
            shop.wrong[f"{key}1"] = failing(ValueError())
        await shop.publish(*(f"{key}{n}" for key in keys for n in (1, 2)))
        await shop.app.drain()
        assert len(await shop.parked()) == 16
    async with opened(database, handled_by("key", partitions=4)) as shop:
        assert len({row["partition"] for row in (await shop.parked()).values()}) > 1
        await shop.make_due()
        await shop.publish(*(f"{key}3" for key in keys))
        await shop.app.drain()
        effects = await shop.effects()
        for key in keys:
            assert [name for name in effects if name[0] == key] == [f"{key}1", f"{key}2", f"{key}3"]


async def test_errors_are_sanitised_and_cut(database: str) -> None:
    async with opened(database) as shop:
        shop.wrong["a1"] = failing(ValueError("\x00\x1b[31mred " + "x" * 1_000_000 + "\ud800"))
        await shop.publish("a1")
        await shop.app.drain()
        error = (await shop.parked())["a1"]["last_error"]
        assert len(error.encode()) <= 8192
        assert "\x1b" not in error


async def test_raise_on_failure(database: str) -> None:
    async with opened(database) as shop:
        shop.wrong["a1"] = failing(ValueError("loud"))
        await shop.publish("a1")
        with pytest.raises(ValueError, match="loud"):
            await shop.app.drain(raise_on_failure=True)
        assert (await shop.parked())["a1"]["attempts"] == 1


@pytest.mark.parametrize("blocking", [False, True], ids=["async", "blocking"])
async def test_a_handler_that_takes_too_long_is_parked(database: str, blocking: bool) -> None:
    release = threading.Event()

    def declare(shop: Shop) -> None:
        if blocking:

            @shop.app.handler(Placed, name="shop.slow", timeout="2s", retry=SOON)
            def slow(event: Placed, ctx: SyncHandlerContext) -> None:
                ctx.tx.execute("insert into effect (name) values ('late')")
                if event.n == 2:
                    release.wait(10)
                    ctx.tx.execute("insert into effect (name) values ('later still')")
        else:

            @shop.app.handler(Placed, name="shop.slow", timeout="2s", retry=SOON)
            async def slow_too(event: Placed, ctx: HandlerContext) -> None:
                await ctx.tx.execute("insert into effect (name) values ('late')")
                if event.n == 2:
                    await ctx.tx.execute("select pg_sleep(10)")

    try:
        async with opened(database, declare) as shop:
            await shop.publish("a1", "b2", "c3")
            drained = await shop.app.drain()
            assert (drained.handled, drained.to_retry) == (2, 1)
            assert (await shop.parked())["b2"]["last_error_code"] == "timeout"
            assert await shop.effects() == ["late", "late"]
    finally:
        release.set()


async def test_cancelling_a_drain_is_not_a_failure(database: str) -> None:
    reached = asyncio.Event()

    def declare(shop: Shop) -> None:
        @shop.app.handler(Placed, name="shop.waits")
        async def waits(event: Placed, ctx: HandlerContext) -> None:
            await ctx.tx.execute("insert into effect (name) values ('x')")
            reached.set()
            await asyncio.Event().wait()

    async with opened(database, declare) as shop:
        await shop.publish("a1")
        task = asyncio.create_task(shop.app.drain())
        await reached.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not await shop.effects()
        assert not await shop.parked()


# The transaction is the worker's


async def test_a_swallowed_database_error_is_a_failure(database: str) -> None:
    def declare(shop: Shop) -> None:
        @shop.app.handler(Placed, name="shop.careless", retry=SOON)
        async def careless(event: Placed, ctx: HandlerContext) -> None:
            await ctx.tx.execute("insert into effect (name) values (%s)", [event.customer])
            if event.n == 2:
                with contextlib.suppress(psycopg.Error):
                    await ctx.tx.execute("select 1/0")

    async with opened(database, declare) as shop:
        await shop.publish("a1", "b2", "c3")
        await shop.app.drain()
        assert await shop.effects() == ["a", "c"]
        assert (await shop.parked())["b2"]["last_error_code"] == "swallowed_error"


async def test_an_error_caught_in_a_savepoint_is_fine(database: str) -> None:
    def declare(shop: Shop) -> None:
        @shop.app.handler(Placed, name="shop.careful")
        async def careful(event: Placed, ctx: HandlerContext) -> None:
            with pytest.raises(psycopg.errors.DivisionByZero):
                async with ctx.tx.transaction():
                    await ctx.tx.execute("select 1/0")
            await ctx.tx.execute("insert into effect (name) values (%s)", [event.customer])

    async with opened(database, declare) as shop:
        await shop.publish("a1")
        assert (await shop.app.drain(raise_on_failure=True)).handled == 1
        assert await shop.effects() == ["a"]


@pytest.mark.parametrize("swallow", [False, True], ids=["let through", "swallowed"])
@pytest.mark.parametrize(
    "statements",
    [
        ["commit"],
        ["rollback"],
        ["commit", "begin"],
        ["rollback", "begin"],
        ["prepare transaction 'mine'"],
        ["end; begin"],
    ],
    ids=lambda each: ", ".join(each),
)
async def test_a_handler_that_ends_the_transaction_is_buried(
    database: str, statements: list[str], swallow: bool
) -> None:
    """Whatever it does: no effect without its receipt, no receipt without its effect."""

    def declare(shop: Shop) -> None:
        @shop.app.handler(Placed, name="shop.rude", retry=SOON)
        async def rude(event: Placed, ctx: HandlerContext) -> None:
            shop.calls.append(event.customer)
            await ctx.tx.execute("insert into effect (name) values (%s)", [event.customer])
            for statement in statements if event.n == 2 else ():
                try:
                    await ctx.tx.execute(statement.encode())
                except psycopg.Error:
                    if not swallow:
                        raise

    async with opened(database, declare) as shop:
        await shop.publish("a1", "b2", "c3", "d4")
        await shop.app.drain()
        assert await shop.effects() == ["a", "c", "d"]
        parked = await shop.parked()
        assert parked.keys() == {"b2"}
        assert (parked["b2"]["status"], parked["b2"]["last_error_code"]) == ("failed", "transaction_ended")
        receipts = await shop.rows(
            "select o.payload->>'customer' as c from outrider.event_handled join outrider.outbox o using (seq)"
        )
        assert sorted(row["c"] for row in receipts) == ["a", "c", "d"]


async def test_the_connection_of_a_handler_cannot_commit(database: str) -> None:
    def declare(shop: Shop) -> None:
        @shop.app.handler(Placed, name="shop.polite")
        async def polite(event: Placed, ctx: HandlerContext) -> None:
            for method in (ctx.tx.commit, ctx.tx.rollback, ctx.tx.close):
                with pytest.raises(psycopg.ProgrammingError, match="belongs to the worker"):
                    await method()
            with pytest.raises(psycopg.ProgrammingError, match="belongs to the worker"):
                await ctx.tx.set_autocommit(True)
            await ctx.tx.execute("insert into effect (name) values (%s)", [event.customer])

    async with opened(database, declare) as shop:
        await shop.publish("a1")
        await shop.app.drain(raise_on_failure=True)
        assert await shop.effects() == ["a"]


@pytest.mark.parametrize("batch", [False, True], ids=["one by one", "whole batches"])
async def test_a_failure_at_commit_finds_its_event(database: str, batch: bool) -> None:
    """A deferred constraint speaks up at COMMIT, when nobody knows any more which handler it was."""

    def declare(shop: Shop) -> None:
        if batch:

            @shop.app.handler(Placed, name="shop.deferred")
            async def together(events: list[Placed], ctx: HandlerContext) -> None:
                for event in events:
                    await ctx.tx.execute("insert into child values (%s)", [event.n])
        else:

            @shop.app.handler(Placed, name="shop.deferred")
            async def deferred(event: Placed, ctx: HandlerContext) -> None:
                await ctx.tx.execute("insert into child values (%s)", [event.n])

    async with opened(database, declare) as shop:
        await shop.rows("create table parent (n int primary key); insert into parent values (1), (3), (4)")
        await shop.rows("create table child (n int references parent deferrable initially deferred)")
        await shop.publish("a1", "b2", "c3", "d4")
        drained = await shop.app.drain()
        assert (drained.handled, drained.buried) == (3, 1)
        assert [row["n"] for row in await shop.rows("select n from child order by n")] == [1, 3, 4]
        assert (await shop.parked())["b2"]["last_error_code"] == "23503"


async def test_a_limit_at_commit_is_not_always_a_full_queue(database: str) -> None:
    """The SQLSTATE is that of a full queue of notifications, of which no event is to blame."""

    def declare(shop: Shop) -> None:
        @shop.app.handler(Placed, name="shop.deferred", retry=RetryPolicy(retries=0))
        async def deferred(event: Placed, ctx: HandlerContext) -> None:
            await ctx.tx.execute("insert into child values (%s)", [event.n])

    async with opened(database, declare) as shop:
        await shop.rows("create table child (n int)")
        await shop.rows("""create function refuse() returns trigger language plpgsql as $$
                           begin raise 'too large' using errcode = '54000'; end $$""")
        await shop.rows("""create constraint trigger refuse after insert on child deferrable initially deferred
                           for each row when (new.n = 2) execute function refuse()""")
        await shop.publish("a1", "b2", "c3")
        drained = await shop.app.drain()
        assert (drained.handled, drained.buried) == (2, 1)
        assert (await shop.parked())["b2"]["last_error_code"] == "54000"


async def test_a_failing_batch_handler_finds_its_event(database: str) -> None:
    def declare(shop: Shop) -> None:
        @shop.app.handler(Placed, name="shop.together", retry=SOON)
        async def together(events: list[Placed], ctx: HandlerContext) -> None:
            for event in events:
                await ctx.tx.execute("insert into effect (name) values (%s)", [event.customer])
                if event.n == 2:
                    raise ValueError("one of these")

    async with opened(database, declare) as shop:
        await shop.publish("a1", "b2", "c3", "d4")
        await shop.app.drain()
        assert await shop.effects() == ["a", "c", "d"]
        assert (await shop.parked())["b2"]["attempts"] == 1


# Nobody's fault


async def test_infrastructure_errors_use_no_attempt(database: str) -> None:
    """Alone ten times in a row, and it is parked, with its attempts as they were."""
    raise_it = "do $$ begin raise exception 'again' using errcode = '40001'; end $$"

    def declare(shop: Shop) -> None:
        @shop.app.handler(Placed, name="shop.unlucky", retry=SOON)
        async def unlucky(event: Placed, ctx: HandlerContext) -> None:
            shop.calls.append(event.customer)
            await ctx.tx.execute("insert into effect (name) values (%s)", [event.customer])
            if event.n == 2 or (event.n == 3 and shop.calls.count("c") < 3):
                await ctx.tx.execute(raise_it.encode())

    async with opened(database, declare) as shop:
        seen: list[Signal] = []
        shop.app.signals.listen(seen.append)
        await shop.publish("a1", "b2", "c3", "d4")
        drained = await shop.app.drain()
        assert (drained.handled, drained.to_retry, drained.buried) == (3, 1, 0)
        assert sorted(await shop.effects()) == ["a", "c", "d"]
        row = (await shop.parked())["b2"]
        assert (row["attempts"], row["last_error_code"], row["status"]) == (0, "40001", "pending")
        assert any(isinstance(each, Troubled) for each in seen)
        assert [each.attempt for each in seen if isinstance(each, Failed)] == [1]


async def test_an_infrastructure_error_from_elsewhere_is_the_handlers_own(database: str) -> None:
    async with opened(database) as shop:
        shop.wrong["a1"] = failing(ConnectionError("the mail server is away"))
        await shop.publish("a1")
        await shop.app.drain()
        assert (await shop.parked())["a1"]["attempts"] == 1


async def test_a_session_that_is_lost_in_the_midst(database: str) -> None:
    def declare(shop: Shop) -> None:
        @shop.app.handler(Placed, name="shop.cut", retry=RetryPolicy(retries=0))
        async def cut(event: Placed, ctx: HandlerContext) -> None:
            shop.calls.append(event.customer)
            await ctx.tx.execute("insert into effect (name) values (%s)", [event.customer])
            if len(shop.calls) == 2:
                await shop.rows(f"select pg_terminate_backend({ctx.tx.info.backend_pid})")
                await ctx.tx.execute("select 1")

    async with opened(database, declare) as shop:
        await shop.publish("a1", "b2", "c3")
        drained = await shop.app.drain()
        assert (drained.handled, drained.buried) == (3, 0)
        assert await shop.effects() == ["a", "b", "c"]
