"""The doctor: checks the server, the log, the workers and the brokers.

Each check measures first (postgres.admin.diagnostics) and then decides (the modules *_checks). A check that fails, or takes
too long, is a finding too. Nothing here writes: all transactions are read-only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeVar

from outrider.doctor import checks, server_checks
from outrider.doctor.finding import Finding, counted, critical, note, ok, warning
from outrider.doctor.subscription_checks import judge_standing, judge_unserved
from outrider.doctor.worker_checks import judge_silent, judge_troubles
from outrider.error_text import describe
from outrider.errors import BrokerUnavailable, OutriderError, StreamMissing
from outrider.postgres import content_classes, rollups
from outrider.postgres.admin import diagnostics, probes, status
from outrider.postgres.admin.tenants import hidden_from
from outrider.postgres.connection import AsyncSession, DatabaseError
from outrider.postgres.schema import migrate
from outrider.streams.stream import own_copy

if TYPE_CHECKING:
    from outrider.app import Outrider

T = TypeVar("T")

DEADLINE = 5.0
"""Seconds for a notification to arrive."""
LONGEST = 20.0
"""Seconds for one check."""
BLOCKED = 2.0
"""Seconds for one check, once another has waited for a lock in vain."""
IN_VAIN = "it waits for a lock"
INSTALLING = {"source", "rights", "expressions", "stable key"}
"""Topics of `rollup verify` that are about the role that asks, not about what is installed."""


async def examine_all(app: Outrider, conn: AsyncSession, schema: str, listen_dsn: str | None = None) -> list[Finding]:
    """All findings, the most urgent checks first.

    `conn` is in autocommit mode. `listen_dsn`: where workers listen, if that is another address.
    """
    measurements: list[tuple[str, Callable[[], Awaitable[list[Finding]]]]] = [
        ("schema", lambda: _standing(app, conn, schema)),
        ("schema", lambda: _content_classes(app, conn, schema)),
        ("frozen", lambda: _judged(diagnostics.silent(conn, schema), judge_silent)),
        ("generations", lambda: _judged(diagnostics.unserved(conn, schema), judge_unserved)),
        ("settings", lambda: _judged(diagnostics.settings(conn, schema), server_checks.judge_settings)),
        ("locks", lambda: _judged(diagnostics.locks(conn, schema), server_checks.judge_locks)),
        ("transactions", lambda: _holders(conn, schema)),
        ("wal", lambda: _judged(diagnostics.wal(conn, schema), server_checks.judge_wal)),
        ("dead_letters", lambda: _judged(diagnostics.buried(conn, schema), checks.judge_buried)),
        ("dead_letters", lambda: _judged(diagnostics.expiring(conn, schema), checks.judge_expiring)),
        ("overdue", lambda: _judged(diagnostics.overdue(conn, schema), checks.judge_overdue)),
        ("schedules", lambda: _schedules(app, conn, schema)),
        ("latency", lambda: _judged(diagnostics.latencies(conn, schema), checks.judge_latency)),
        ("dead_tuples", lambda: _judged(diagnostics.tuples(conn, schema), checks.judge_tuples)),
        ("segments", lambda: _segments(conn, schema)),
        ("upkeep", lambda: _upkeep(conn, schema)),
        ("rollups", lambda: _rollups(conn, schema)),
        ("pg_cron", lambda: _judged(diagnostics.cron(conn, schema), checks.judge_cron)),
        ("privileges", lambda: _judged(hidden_from(conn, schema), server_checks.judge_hidden)),
        ("privileges", lambda: _judged(diagnostics.rights(conn, schema), server_checks.judge_rights)),
        ("owns", lambda: _owned(app, conn, schema)),
        ("sharing", lambda: _judged(diagnostics.sharing(conn, schema), server_checks.judge_sharing)),
    ]
    async with diagnostics.reading(conn):
        findings = await _made("server", lambda: _server(conn, schema), conn)
        findings += await _made("listener", lambda: _listener(app, conn, schema, listen_dsn), conn)
        longest = LONGEST
        if await migrate.applied(conn, schema):
            for name, check in measurements:
                made = await _made(name, check, conn, longest)
                if any(IN_VAIN in each.found for each in made):
                    longest = min(longest, BLOCKED)
                findings += made
        else:
            findings.append(
                critical(
                    "schema", f'there is no Outrider in the schema "{schema}"', "outrider migrate, or give --schema"
                )
            )
    return findings + await _brokers(app)


async def _made(
    name: str, check: Callable[[], Awaitable[list[Finding]]], conn: AsyncSession, longest: float | None = None
) -> list[Finding]:
    """Whatever goes wrong in a check is a finding, and the other checks are made all the same."""
    making, longest = asyncio.ensure_future(check()), LONGEST if longest is None else longest
    try:
        if (await asyncio.wait([making], timeout=longest))[0]:
            return making.result()
        holders = await _blockers(conn)
    except Exception as error:
        return [
            warning(
                name,
                f"could not be checked: {describe(error)}",
                "if a right is missing, run it as a role that has it (docs/roles.md)",
            )
        ]
    finally:
        making.cancel()
        await asyncio.gather(making, return_exceptions=True)
    told = f"gave no answer within {longest:g} s"
    if holders:
        return [warning(name, f"{told}: {IN_VAIN}", f"it is held by {'; '.join(holders)}")]
    return [warning(name, told, "the server is busy or unreachable: try again")]


async def _blockers(conn: AsyncSession) -> list[str]:
    with suppress(DatabaseError, OutriderError, OSError, TimeoutError):
        async with asyncio.timeout(DEADLINE):
            return await probes.blockers(probes.same_server(conn), conn.info.backend_pid)
    return []


async def _judged(measured: Awaitable[T], judged: Callable[[T], Iterator[Finding]]) -> list[Finding]:
    return list(judged(await measured))


async def _server(conn: AsyncSession, schema: str) -> list[Finding]:
    sent, server = datetime.now(UTC), await diagnostics.server(conn, schema)
    return list(server_checks.judge_server(server, sent, datetime.now(UTC)))


async def _listener(app: Outrider, conn: AsyncSession, schema: str, listen_dsn: str | None) -> list[Finding]:
    if app.settings.notify == "off":
        return [note("listener", "notifications are off: workers poll", "OUTRIDER_NOTIFY=commit turns them on")]
    dsn = listen_dsn or probes.same_server(conn)
    if (wrong := await probes.hears(dsn, schema, DEADLINE)) is not None:
        return [
            warning(
                "listener",
                wrong,
                "workers poll meanwhile; set OUTRIDER_LISTEN_DSN to the server itself, without a pooler",
            )
        ]
    if await probes.pooled(dsn):
        return [
            note(
                "listener",
                "a notification arrives, through a pooler that keeps sessions",
                "no action; if notifications stop, set OUTRIDER_LISTEN_DSN to the server itself",
            )
        ]
    return [ok("listener", "a notification arrives")]


async def _standing(app: Outrider, conn: AsyncSession, schema: str) -> list[Finding]:
    found = await status.status(conn, schema)
    unread = {} if found.pending else await diagnostics.unread(conn, schema)
    broken = [each.name for each in found.subscriptions if "breaker" in each.states]
    failing = await diagnostics.failing(conn, schema, broken) if broken else {}
    declared, polls = {each.name for each in app.subscriptions} or None, app.settings.notify == "off"
    findings = list(judge_standing(found, unread, failing, app.settings.context, declared, polls))
    return findings + _unregistered(app, found) + list(judge_troubles(found)) + _unchecked(app, found)


def _unregistered(app: Outrider, found: status.Status) -> list[Finding]:
    """What the app declares and this database does not know. Without all migrations nobody can say."""
    missing = sorted({each.name for each in app.subscriptions}.difference(each.name for each in found.subscriptions))
    if not missing or found.pending:
        return []
    listed = f"{', '.join(missing[:5])}{' and others' * (len(missing) > 5)}"
    told = f"the app declares {listed}, not registered in this database: nothing is handled for them"
    return [warning("schema", told, "run outrider migrate --app module:name, or correct the DSN")]


def _unchecked(app: Outrider, found: status.Status) -> list[Finding]:
    """Only the app knows the addresses of its brokers."""
    known = {each.name for each in app.relays} | {each.name for each in app.inboxes}
    names = [each.name for each in found.subscriptions if each.kind in ("relay", "inbox") and each.name not in known]
    if not names:
        return []
    listed = f"{', '.join(names[:5])}{' and others' * (len(names) > 5)}"
    told = f"{listed}: their brokers were not checked, because no app declares them"
    return [note("brokers", told, "outrider doctor --app module:name checks them too")]


async def _content_classes(app: Outrider, conn: AsyncSession, schema: str) -> list[Finding]:
    added = app.settings.content_classes
    missing = sorted(added - (await content_classes.allowed(conn, schema)).keys()) if added else []
    told = "the app declares the content class {}, which this database does not allow: its events are refused"
    return [warning("schema", told.format(each), f"outrider setting allow-content-class {each}") for each in missing]


async def _schedules(app: Outrider, conn: AsyncSession, schema: str) -> list[Finding]:
    now, schedules = await diagnostics.schedules(conn, schema)
    served = {name for worker in await status.workers(conn, schema) if worker.live for name in worker.subscriptions}
    declared = {each.name for each in app.schedules} if app.subscriptions or app.schedules else None
    return list(checks.judge_schedules(schedules, now, app.settings.context, declared, served))


async def _holders(conn: AsyncSession, schema: str) -> list[Finding]:
    holders, server = await diagnostics.holders(conn, schema), await diagnostics.server(conn, schema)
    return list(server_checks.judge_holders(holders, server.sees_all))


async def _segments(conn: AsyncSession, schema: str) -> list[Finding]:
    return list(checks.judge_segments(await diagnostics.segments(conn, schema)))


async def _upkeep(conn: AsyncSession, schema: str) -> list[Finding]:
    keeping, server = await diagnostics.upkeep(conn, schema), await diagnostics.server(conn, schema)
    return list(checks.judge_upkeep(keeping, server.now))


async def _owned(app: Outrider, conn: AsyncSession, schema: str) -> list[Finding]:
    told = app.settings
    if not told.owns:
        return []
    found = await diagnostics.foreign_writers(
        conn, schema, context=told.context, contexts=told.contexts or (), owns=told.owns, roles=told.roles
    )
    return list(server_checks.judge_owned(told.context, sorted(told.owns), found))


async def _rollups(conn: AsyncSession, schema: str) -> list[Finding]:
    standings = [each for each in await rollups.standings(conn, schema) if each.uninstalled_at is None]
    findings = []
    for each in standings:
        failed = [check for check in await rollups.verify(conn, each.name, schema) if not check.passed]
        if any(check.topic == "rights" for check in failed):  # of who asks, who need not be able to install it
            failed = [check for check in failed if check.topic not in INSTALLING]
        for check in failed:
            told = warning if check.blocks or check.topic == "schedule" else note
            findings.append(
                told("rollups", f"{each.name}: {check.topic}: {check.detail}", f"outrider rollup verify {each.name}")
            )
        if each.last_run is not None and each.last_run["result"] == "error":
            findings.append(
                critical(
                    "rollups",
                    f"{each.name}: its last run failed: {each.last_run['error_text']}",
                    f"outrider rollup status {each.name}",
                )
            )
        if each.set_aside:
            findings.append(
                warning(
                    "rollups",
                    f"{each.name}: {counted(each.set_aside, 'row')} set aside: no event could be made of them",
                    f"outrider rollup status {each.name}, then outrider rollup run {each.name} --retry",
                )
            )
    return findings or ([ok("rollups", f"{len(standings)} installed, none has changed")] if standings else [])


async def _brokers(app: Outrider) -> list[Finding]:
    used: dict[str, tuple[list[str], object]] = {}
    for name, stream in [
        *((each.name, each.sink) for each in app.relays),
        *((each.name, each.source) for each in app.inboxes),
    ]:
        used.setdefault(told_of(stream), ([], stream))[0].append(name)
    found = await asyncio.gather(*(judge_broker(names, stream, LONGEST) for names, stream in used.values()))
    return [finding for each in found for finding in each]


async def judge_broker(names: Sequence[str], stream: Any, longest: float) -> list[Finding]:
    """`stream` is the sink or the source of those subscriptions. One that does not say how durable it is, is taken at its
    word. Sinks may be anybody's: whatever they raise is a finding. A worker of this process may use the stream: it is not
    closed."""
    who, own = ", ".join(names), None
    try:
        own = own_copy(stream)
        asked = stream if own is None else own
        ask = getattr(asked, "weaknesses", None)
        async with asyncio.timeout(longest):
            if ask is None:
                await asked.open()
            weaknesses = [] if ask is None else await ask()
    except StreamMissing as error:
        return [critical("brokers", f"{who}: {error}", "create the stream; events wait in the log meanwhile")]
    except BrokerUnavailable as error:
        return [
            critical("brokers", f"{who}: {error}", "events wait in the log; it continues by itself once it answers")
        ]
    except TimeoutError:
        return [
            critical(
                "brokers", f"{who}: {told_of(stream)} gave no answer within {longest:g} s", "events wait in the log"
            )
        ]
    except Exception as error:
        return [warning("brokers", f"{who}: could not be checked: {describe(error)}", "look at its own log")]
    finally:
        if own is not None:
            with suppress(Exception):
                async with asyncio.timeout(longest):
                    await own.close()
    found = [(warning if each.grave else note)("brokers", f"{who}: {each.found}", each.advice) for each in weaknesses]
    return found or [ok("brokers", f"{who}: {told_of(stream)} keeps what it acknowledges")]


def told_of(stream: object) -> str:
    """Its repr, which may be anybody's too."""
    try:
        return repr(stream)
    except Exception:
        return object.__repr__(stream).split()[0].removeprefix("<") + f" {id(stream):x}"
