"""Which tests a run consists of. CONTRIBUTING.md says what each tier is for.

A test without a marker belongs to `make test`. The markers `verify`, `cron` and `long` put it into another tier,
`also_on(15, 16)` adds runs on older servers, and tests named in quarantine.txt run with the long ones only.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import TypeVar

import pytest
from _pytest.mark.structures import ParameterSet

T = TypeVar("T")
TIERS = {
    "test": "make test: on Postgres 18, in minutes",
    "verify": "the rest of make verify on Postgres 18",
    "versions": "tests marked also_on(the version of this run's server)",
    "cron": "tests that need pg_cron",
}
MARKED = {"verify": r"mark\.verify|one_in_test", "versions": r"mark\.also_on", "cron": r"mark\.cron"}
QUARANTINE = Path(__file__).parent / "quarantine.txt"


def add_options(parser: pytest.Parser) -> None:
    parser.addoption("--tier", choices=list(TIERS), help="; ".join(f"{name} = {what}" for name, what in TIERS.items()))
    parser.addoption("--long", action="store_true", help="also the long runs and quarantined tests (make faults)")


def is_elsewhere(file: Path, config: pytest.Config) -> bool:
    """Whether no test of this file belongs to this run. To import all files takes each of the test processes seconds."""
    if config.option.tier is None or not file.name.startswith("test_"):
        return False
    text = file.read_text()
    if config.option.tier == "test":
        return re.search(r"^pytestmark = .*\bmark\.(verify|cron)\b", text, re.MULTILINE) is not None
    return re.search(MARKED[config.option.tier], text) is None


def select(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep the items of this run. Without --tier: all that need neither --long nor pg_cron."""
    quarantined = read_quarantine()
    for item in items:
        if _bare(item.nodeid) in quarantined:
            item.add_marker(pytest.mark.long)
    tier, long, parallel = config.option.tier, config.option.long, hasattr(config, "workerinput")
    version = int(os.environ.get("OUTRIDER_EMBEDDED_VERSION", "18"))

    def wanted(item: pytest.Item) -> bool:
        marks = {mark.name for mark in item.iter_markers()}
        if "long" in marks and not long:
            return False
        if parallel and ("alone" in marks or (long and "timed" in marks)):
            return False
        match tier:
            case "test":
                return not marks & {"verify", "cron"}
            case "verify" | "cron":
                return tier in marks
            case "versions":
                return any(version in mark.args for mark in item.iter_markers("also_on"))
            case _:
                return "cron" not in marks

    kept = {item.nodeid for item in items if wanted(item)}
    config.hook.pytest_deselected(items=[item for item in items if item.nodeid not in kept])
    items[:] = [item for item in items if item.nodeid in kept]


def one_in_test(values: Iterable[T], chosen: T) -> list[T | ParameterSet]:
    """Parameters of a test: with one of them it runs in make test, with the others in make verify."""
    return [value if value == chosen else pytest.param(value, marks=pytest.mark.verify) for value in values]


def read_quarantine() -> set[str]:
    """The ids of quarantined tests: the lines that are neither empty, indented nor comments."""
    lines: Iterable[str] = QUARANTINE.read_text().splitlines()
    return {line.strip() for line in lines if line.strip() and not line.startswith((" ", "#"))}


def _bare(nodeid: str) -> str:
    """Without the parameters of the test and the group that pytest-xdist appends."""
    return nodeid.partition("[")[0].partition("@")[0]
