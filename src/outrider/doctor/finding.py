"""The findings of `outrider doctor`. Values only."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum

from outrider.redaction import mask


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


SHOWN = 5
"""The most findings of one kind that are listed."""


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
