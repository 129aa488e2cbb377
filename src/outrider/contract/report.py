"""The findings of a check, as text and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from outrider.contract.change import ContractChange
from outrider.contract.compatibility import Misfit


class FindingKind(StrEnum):
    NO_SNAPSHOT = "no_snapshot"
    BREAKING = "breaking"
    OUTDATED = "outdated"
    GONE = "gone"
    UNREADABLE = "unreadable"
    NO_PRODUCER = "no_producer"
    MISFIT = "misfit"
    DEPRECATED = "deprecated"
    EXPIRED = "expired"
    OLD_COPY = "old_copy"
    HOLE = "hole"
    STRAY = "stray"
    UNHEARD = "unheard"


_WARNINGS = {FindingKind.DEPRECATED, FindingKind.OLD_COPY, FindingKind.STRAY, FindingKind.UNHEARD}


@dataclass(frozen=True, slots=True)
class ContractFinding:
    kind: FindingKind
    says: str
    fix: str
    details: Sequence[ContractChange | Misfit] = ()

    @property
    def fails(self) -> bool:
        return self.kind not in _WARNINGS

    def lines(self) -> list[str]:
        says = self.says if self.fails else f"warning: {self.says}"
        shown = [f"  {line}" for line in says.splitlines()]
        shown += [f"    {each}{'' if _breaks(each) else ' (breaks nobody)'}" for each in self.details]
        first, *rest = self.fix.splitlines()
        return [*shown, f"  fix: {first}", *(f"       {line}" for line in rest)]

    def as_json(self) -> dict[str, Any]:
        details = [_as_json(each) for each in self.details]
        return {"kind": self.kind, "fails": self.fails, "says": self.says, "details": details, "fix": self.fix}


@dataclass(frozen=True, slots=True)
class Block:
    """All findings on one version of an event, as one class or one file has it."""

    type: str
    version: int
    subject: str
    findings: Sequence[ContractFinding]

    @property
    def fails(self) -> bool:
        return any(each.fails for each in self.findings)

    def __str__(self) -> str:
        lines = [line for finding in self.findings for line in finding.lines()]
        return "\n".join([f"{self.type} version {self.version} ({self.subject})", *lines])

    def as_json(self) -> list[dict[str, Any]]:
        head = {"type": self.type, "version": self.version, "subject": self.subject}
        return [head | finding.as_json() for finding in self.findings]


@dataclass(frozen=True, slots=True)
class ContractReport:
    published: int
    views: int
    past: int
    """Snapshots of versions that are still read but no longer published."""
    blocks: Sequence[Block]

    @property
    def fails(self) -> bool:
        return any(block.fails for block in self.blocks)

    def __str__(self) -> str:
        return "\n\n".join([*map(str, self.blocks), self._summary()])

    def _summary(self) -> str:
        broken = sum(block.fails for block in self.blocks)
        warnings = sum(not finding.fails for block in self.blocks for finding in block.findings)
        parts = [f"{self.published} published", _count(self.views, "view")]
        if self.past:
            parts.append(f"{_count(self.past, 'past version')} still read")
        said = _count(self.published + self.views, "contract")
        said += f" ({', '.join(parts)})"
        verdict = f"{said}: {broken} to fix" if broken else f"{said}: all hold"
        return verdict + (f", {_count(warnings, 'warning')}" if warnings else "")

    def as_json(self) -> dict[str, Any]:
        return {
            "ok": not self.fails,
            "published": self.published,
            "views": self.views,
            "past": self.past,
            "findings": [finding for block in self.blocks for finding in block.as_json()],
        }


def _breaks(detail: ContractChange | Misfit) -> bool:
    return not isinstance(detail, ContractChange) or detail.breaks


def _as_json(detail: ContractChange | Misfit) -> dict[str, Any]:
    if isinstance(detail, ContractChange):
        return {
            "kind": detail.kind,
            "path": detail.path,
            "was": detail.was,
            "now": detail.now,
            "breaks": detail.breaks,
            "says": str(detail),
        }
    return {
        "kind": detail.kind,
        "path": detail.path,
        "writes": detail.writes,
        "reads": detail.reads,
        "breaks": True,
        "says": str(detail),
    }


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
