"""What a doctor says: one finding for each thing that was looked at. Values only."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from outrider.redaction import mask


class Severity(IntEnum):
    """As monitoring systems count: the exit code of `outrider doctor`."""

    ok = 0
    note = -1
    """Worth knowing, nothing to do at once; exits like ok."""
    warning = 1
    critical = 2


@dataclass(frozen=True, slots=True)
class Finding:
    check: str
    """One word, that of the runbook."""
    severity: Severity
    found: str
    advice: str = ""
    """What to do; empty when all is well."""

    def __post_init__(self) -> None:
        """Brokers and their clients are anybody's: what they say of themselves may hold a password."""
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
