"""Tasks of every kind, and the app whose workers run them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from outrider import Backoff, Bury, Outrider
from outrider.integrations.django.tasks import serve_tasks

from .models import Invoice

if TYPE_CHECKING:
    from django.tasks import TaskContext, task
else:
    try:
        from django.tasks import TaskContext, task
    except ImportError:
        from django_tasks import TaskContext, task

app = Outrider(context="tasks")
serve_tasks(app, retry=Backoff.table("1h"))


@task
def invoice(order_id: str, *, copies: int = 1) -> dict[str, Any]:
    Invoice.objects.create(order_id=order_id)
    return {"order": order_id, "copies": copies}


@task(takes_context=True)
def attempt(context: TaskContext[Any, Any]) -> int:
    return context.attempt


@task
async def later(text: str) -> str:
    return text.upper()


@task
def failing(how: str) -> None:
    raise Bury("it never works") if how == "for good" else OSError("the mail server is away")


@task
def returning(size: int, padding: str = "") -> str:
    return "x" * size


@task
def returning_nothing() -> None:
    pass


def plain() -> None:
    """Not a task."""
