"""Who acts as an operator, and why. A module of its own, so that the command line does not import the database for it."""

from __future__ import annotations

from dataclasses import asdict, dataclass


@dataclass(frozen=True, slots=True)
class Signed:
    """Who acts and why, for the audit."""

    by: str | None = None
    """Default: the database role."""
    reason: str | None = None

    def params(self) -> dict[str, str | None]:
        return asdict(self)


UNSIGNED = Signed()
