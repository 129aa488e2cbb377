"""This context's own view of what others publish: only the fields that it reads."""

from __future__ import annotations

from decimal import Decimal
from uuid import UUID

from pydantic import BaseModel

from outrider import Event


class Finding(BaseModel):
    title: str


class ScanCompleted(Event, type="worlds.scan_completed", version=1, foreign=True):
    world_id: UUID
    world_name: str
    scan_id: UUID
    number: int
    habitability: Decimal
    findings: tuple[Finding, ...]
