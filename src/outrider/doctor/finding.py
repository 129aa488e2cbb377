"""The findings of `outrider doctor`, and how their texts write numbers and times. Values only."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from enum import IntEnum

from outrider.redaction import mask

SHOWN = 5
"""The most findings of one kind that are listed."""


class Severity(IntEnum):
    """The exit code of `outrider doctor`, as monitoring systems expect it."""

    ok = 0
    note = -1
    """For information; the exit code is that of ok."""
    warning = 1
    critical = 2


@dataclass(frozen=True, slots=True)
class Finding:
    check: str
    """The name of the check, as in the runbook."""
    severity: Severity
    found: str
    advice: str = ""
    """What to do; empty for ok."""

    def __post_init__(self) -> None:
        """Messages of brokers and their clients may contain a password."""
        object.__setattr__(self, "found", mask(self.found))
        object.__setattr__(self, "advice", mask(self.advice))


def ok(check: str, found: str) -> Finding:
    return Finding(check, Severity.ok, found)


def note(check: str, found: str, advice: str) -> Finding:
    return Finding(check, Severity.note, found, advice)


def warning(check: str, found: str, advice: str) -> Finding:
    return Finding(check, Severity.warning, found, advice)


def critical(check: str, found: str, advice: str) -> Finding:
    return Finding(check, Severity.critical, found, advice)


def more(check: str, number: int) -> Iterator[Finding]:
    """For the findings that are not listed, if any."""
    if number > 0:
        yield warning(check, f"and {number} more like these", "the same")


def counted(number: int, noun: str, most: int | None = None) -> str:
    """`most`: where counting ended."""
    more = " or more" * (most is not None and number >= most)
    return f"{number:,}{more} {noun}" + "s" * (number != 1)


def seconds(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"


def span(of: timedelta) -> str:
    seconds = of.total_seconds()
    for most, unit, size in ((120, "s", 1), (7200, "min", 60), (172_800, "h", 3600)):
        if seconds < most:
            return f"{seconds // size:.0f} {unit}"
    return f"{seconds // 86_400:.0f} days"
