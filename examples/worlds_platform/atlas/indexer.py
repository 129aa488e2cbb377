"""The handler: from the event to the projection."""

from __future__ import annotations

from outrider import HandlerContext

from .events import ScanCompleted
from .repository import Snapshot, SnapshotRepository


class ScanIndexer:
    def __init__(self, repository: SnapshotRepository) -> None:
        self._repository = repository

    async def __call__(self, event: ScanCompleted, ctx: HandlerContext) -> None:
        await self._repository.put(
            Snapshot(
                world_id=event.world_id,
                world_name=event.world_name,
                scan_id=event.scan_id,
                number=event.number,
                habitability=event.habitability,
                titles=[each.title for each in event.findings],
                snapshot=ctx.envelope.payload_json,
            )
        )
