"""The events of the hub, the rollup that tells of births, and a handler. The hub itself is hub.sql, and needs no Python."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from uuid import UUID

from outrider import Event, HandlerContext, Outrider
from outrider.rollup import Check, Notification, Parent

TABLES = (Path(__file__).parent / "hub.sql").read_text()
NAME = "hub.imports"


class NewPieceCreated(Event, type="hub.new_piece_created"):
    unit_id: UUID
    canonical_address: str
    ref_id: UUID
    actor_ref: str
    source_document_ref: str | None = None
    import_batch_ref: str | None = None


class DocumentImported(Event, type="hub.document_imported", key="key"):
    """What has a default is there if all of its pieces agree on it."""

    key: str
    piece_count: int
    first_at: datetime
    last_at: datetime
    first_unit_id: UUID
    first_address: str
    first_ref_id: UUID
    first_actor: str
    actor_ref: str | None = None
    source_document_ref: str | None = None
    import_batch_ref: str | None = None


app = Outrider(context="hub")  # OUTRIDER_DSN

app.rollup(
    NAME,
    table="unit_version",
    when="new.version_seq = 1",  # the birth of a unit
    parent=Parent("information_unit", on="parent.id = new.unit_id"),
    key="coalesce(parent.source_document_ref, parent.import_batch_ref)",
    carry={
        "unit_id": "new.unit_id",
        "canonical_address": "parent.canonical_address",
        "ref_id": "new.id",
        "actor_ref": "new.created_by",
        "source_document_ref": "parent.source_document_ref",
        "import_batch_ref": "parent.import_batch_ref",
    },
    first={
        "first_unit_id": "unit_id",
        "first_address": "canonical_address",
        "first_ref_id": "ref_id",
        "first_actor": "actor_ref",
    },
    single=NewPieceCreated,
    rollup=DocumentImported,
    notify=Notification(
        "iu_notification_event",
        {
            "event_type": "split_part(event_type, '.', 2)",
            "event_stream": "'update'",
            "unit_id": "coalesce(payload ->> 'first_unit_id', payload ->> 'unit_id')::uuid",
            "canonical_address": "coalesce(payload ->> 'first_address', payload ->> 'canonical_address')",
            "ref_id": "coalesce(payload ->> 'first_ref_id', payload ->> 'ref_id')::uuid",
            "actor_ref": "coalesce(payload ->> 'first_actor', payload ->> 'actor_ref')",
            "source": "'worker'",
            "payload": "case when piece_count > 1 then jsonb_build_object('piece_count', piece_count) end",
        },
    ),
    checks=[
        Check(
            "iu_notification_event",
            "chk_notif_event_type",
            """event_type in (
                'comment_added', 'draft_created', 'version_applied', 'new_piece_created', 'document_imported')""",
        ),
        Check(
            "iu_notification_event",
            "chk_notif_event_type_stream",
            """event_type = 'comment_added' and event_stream = 'comment'
            or event_type = 'draft_created' and event_stream = 'review'
            or event_type in ('version_applied', 'new_piece_created', 'document_imported') and event_stream = 'update'""",
        ),
    ],
)


@app.handler(DocumentImported, name="hub.count_documents")
async def count(event: DocumentImported, ctx: HandlerContext) -> None:
    """A document that comes in two parts, with a pause between them, is announced twice and counted once."""
    await ctx.tx.execute(
        """insert into imported_document as known values (%s, %s, %s, %s)
           on conflict (document_ref) do update set pieces = known.pieces + excluded.pieces, last_at = excluded.last_at""",
        [event.key, event.piece_count, event.first_actor, event.last_at],
    )
