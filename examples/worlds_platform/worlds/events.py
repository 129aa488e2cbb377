"""What this context tells the others."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal
from typing import Literal
from uuid import UUID

from pydantic import BaseModel, ConfigDict

from outrider import Event


class Spot(BaseModel):
    model_config = ConfigDict(frozen=True)

    latitude: Decimal
    longitude: Decimal


class Finding(BaseModel):
    model_config = ConfigDict(frozen=True)

    title: str
    kind: Literal["life", "ruin", "mineral"]
    confidence: Decimal
    spot: Spot | None = None


class ScanCompleted(Event, type="worlds.scan_completed", version=1, key="world_id"):
    """A snapshot of the scan's result: whoever reads it need not ask back."""

    world_id: UUID
    world_name: str
    scan_id: UUID
    number: int
    completed_at: datetime
    habitability: Decimal
    findings: tuple[Finding, ...]
