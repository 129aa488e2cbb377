"""The events of the hub, the rollup that tells of births, and a handler. The hub itself is hub.sql, and needs no Python."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from uuid import UUID

from outrider import Event, HandlerContext, Outrider
from outrider.rollup import Check, Notification

TABLES = (Path(__file__).parent / "hub.sql").read_text()
NAME = "hub.imports"


class NewPieceCreated(Event, type="hub.new_piece_created"):
    id: UUID
    canonical_address: str
    created_by: str
    source_document_ref: str | None = None
    import_batch_ref: str | None = None


class DocumentImported(Event, type="hub.document_imported", key="key"):
    """What has a default is there if all of its pieces agree on it."""

    key: str
    piece_count: int
    first_at: datetime
    last_at: datetime
    created_by: str | None = None
    source_document_ref: str | None = None
    import_batch_ref: str | None = None


app = Outrider(context="hub")  # OUTRIDER_DSN

app.rollup(
    NAME,
    table="information_unit",
    key=["source_document_ref", "import_batch_ref"],
    carry=["id", "canonical_address", "created_by", "source_document_ref", "import_batch_ref"],
    single=NewPieceCreated,
    rollup=DocumentImported,
    notify=Notification(
        "iu_notification_event",
        {
            "event_type": "split_part(event_type, '.', 2)",
            "event_stream": "'births'",
            "subject": "coalesce(payload ->> 'canonical_address', key)",
            "piece_count": "piece_count",
            "actor": "payload ->> 'created_by'",
            "occurred_at": "occurred_at",
            "notification_key": "idempotency_key",
        },
    ),
    checks=[
        Check(
            "iu_notification_event",
            "iu_notification_event_type_check",
            "event_type in ('new_piece_created', 'document_imported', 'comment_added', 'draft_saved', 'version_added')",
        ),
        Check(
            "iu_notification_event",
            "iu_notification_event_pairing_check",
            """(event_stream, event_type) in (
                ('births', 'new_piece_created'), ('births', 'document_imported'), ('talk', 'comment_added'),
                ('changes', 'draft_saved'), ('changes', 'version_added'))""",
        ),
    ],
)


@app.handler(DocumentImported, name="hub.count_documents")
async def count(event: DocumentImported, ctx: HandlerContext) -> None:
    """A document that comes in two parts, with a pause between them, is announced twice and counted once."""
    await ctx.tx.execute(
        """insert into imported_document as known values (%s, %s, %s, %s)
           on conflict (document_ref) do update
           set pieces = known.pieces + excluded.pieces, last_at = excluded.last_at,
               imported_by = case when known.imported_by = excluded.imported_by then known.imported_by end""",
        [event.key, event.piece_count, event.created_by, event.last_at],
    )
