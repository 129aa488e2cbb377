"""Events and jobs for what is seen of them."""

from __future__ import annotations

from outrider import Event, Job, Outrider, RetryPolicy

LATER = RetryPolicy(retries=2, base="1h", cap="2h", jitter="none")


class Placed(Event, type="seen.placed", key="order"):
    order: str
    n: int = 0


class Paid(Event, type="seen.paid", key="order"):
    order: str


class Mail(Job, type="seen.mail"):
    to: str = ""


class Bill(Job, type="seen.bill"):
    order: str = ""


async def publish(app: Outrider, *events: Event) -> None:
    async with app.connect() as conn, conn.transaction():
        await app.publish_many(conn, events)


async def make_due(app: Outrider) -> None:
    """Time travel: whatever waits is due now."""
    async with app.connect() as conn:
        for table in ("delivery", "job"):
            due = f"update outrider.{table} set run_at = run_at - interval '1 day' where status = 'pending'"
            await conn.execute(due.encode())
