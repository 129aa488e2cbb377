"""The two phases of an upgrade. No I/O.

Additive migrations are the pre phase: they are applied while the previous release runs. Breaking migrations are the post
phase: they wait until all running code knows them. New code works without the post phase, unless a step says `stop`: older
code does not work with it, newer code does not work without it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar

from outrider.errors import MigrationRefused


class Phase(StrEnum):
    pre = "pre"
    post = "post"


@dataclass(frozen=True, slots=True)
class Numbered:
    version: int
    name: str
    breaking: bool

    @property
    def phase(self) -> Phase:
        return Phase.post if self.breaking else Phase.pre

    @property
    def needed(self) -> bool:
        """Whether the code of its release does not work without it."""
        return not self.breaking


N = TypeVar("N", bound=Numbered)


@dataclass(frozen=True, slots=True)
class LiveWorker:
    """A worker that was seen within the last 30 s."""

    place: str
    code: str
    knows: int
    """The newest migration that its code knows."""

    def __str__(self) -> str:
        return f"{self.place} ({self.code}, which knows version {self.knows})"


def through(phase: Phase, todo: Sequence[N]) -> list[N]:
    """The steps up to a phase. The pre phase leaves out what is not needed at the end, except in a new installation."""
    last = max((place for place, step in enumerate(todo, 1) if step.needed), default=0)
    return list(todo if phase is Phase.post or (todo and todo[0].version == 1) else todo[:last])


def held_up(step: Numbered, workers: Sequence[LiveWorker]) -> list[LiveWorker]:
    """The workers that do not know a breaking step."""
    return [worker for worker in workers if step.breaking and worker.knows < step.version]


def refuse_unaware(todo: Sequence[Numbered], workers: Sequence[LiveWorker]) -> None:
    """Refuses before anything is applied: half an upgrade is only done with `--phase pre`."""
    first = through(Phase.pre, todo)
    for step in todo:
        if unaware := held_up(step, workers):
            instead = (
                "; or run `outrider migrate --phase pre` now, replace them, and then run `outrider migrate`"
                if first and step not in first
                else ""
            )
            raise MigrationRefused(
                f"migration {step.version:04} {step.name} has to wait: it breaks code that does not know it, and such "
                f"workers were seen within the last 30 s: {'; '.join(map(str, unaware))}: stop them (a killed worker counts "
                f"for 30 s){instead}. --force breaks them"
            )
