"""Installs a rollup unless it is installed as declared, and compares the two."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from outrider.postgres import rollups
from outrider.postgres.connection import AsyncSession
from outrider.postgres.rollups import RollupFinding, Spec

AS_MADE = {"installed", "functions", "schedule"}
"""The topics of verify that installing again repairs."""


@dataclass(frozen=True, slots=True)
class Installation:
    findings: list[RollupFinding]
    """Of the preflight."""
    commands: list[str] | None = None
    """The commands that were run; None if nothing had to change, or the installation was refused."""
    scheduler: str | None = None
    """Who runs it, "cron" or "worker"; None if the installation was refused."""


async def install_unless_same(conn: AsyncSession, spec: Spec, schema: str) -> Installation:
    found = await rollups.preflight(conn, spec, schema)
    if blocking_topics(found):
        return Installation(found)
    if (scheduler := await _scheduler_if_same(conn, spec, found, schema)) is not None:
        return Installation(found, scheduler=scheduler)
    told = await rollups.install(conn, spec, schema)
    return Installation(found, told["commands"], told["scheduler"])


def blocking_topics(found: Sequence[RollupFinding]) -> str:
    return ", ".join(each.topic for each in found if each.blocks and not each.passed)


async def _scheduler_if_same(conn: AsyncSession, spec: Spec, found: Sequence[RollupFinding], schema: str) -> str | None:
    """The scheduler of the rollup, if installing it again would change nothing; else None."""
    name = spec["name"]
    state = (await rollups.states(conn, {name: spec}, schema)).get(name)
    if state is None or not state.installed or state.changed:
        return None
    cron = any((each.topic, each.value) == ("pg_cron", "INSTALLED") for each in found) and spec["scheduler"] != "worker"
    noted = all((each.topic, each.value) != ("other triggers", "CHANGED") for each in found)
    made = all(each.passed for each in await rollups.verify(conn, name, schema) if each.topic in AS_MADE)
    altered = any(each.startswith(("alter table ", "drop ")) for each in await rollups.commands(conn, spec, schema))
    same = state.scheduler == ("cron" if cron else "worker")
    return state.scheduler if noted and made and same and not altered else None


def compared(name: str, installed: Spec, declared: Mapping[str, Spec]) -> RollupFinding:
    if name not in declared:
        detail = f"the app does not declare it: declare it, or outrider rollup uninstall {name}"
        return RollupFinding("declared", False, "ABSENT", detail, False)
    spec = declared[name]
    differing = [each for each in sorted({*spec, *installed}) if spec.get(each) != installed.get(each)]
    if differing:
        detail = f"declared and installed differ in {', '.join(differing)}: outrider rollup install {name}"
        return RollupFinding("declared", False, "CHANGED", detail, False)
    return RollupFinding("declared", True, "EQUAL", "it is installed as it is declared", False)
