"""Django's tasks: enqueued in the transaction, run by a worker, their results read by Django."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from django.core.management import call_command
from django.db import connection, transaction
from django.utils import timezone
from tests.integrations.django_project.here import changed, pointed_at

from outrider.errors import EnqueueRefused

if TYPE_CHECKING:
    from django.tasks import TaskResultStatus, default_task_backend
    from django.tasks.exceptions import TaskResultDoesNotExist
    from django.tasks.signals import task_enqueued, task_finished, task_started
else:
    try:
        from django.tasks import TaskResultStatus, default_task_backend
        from django.tasks.exceptions import TaskResultDoesNotExist
        from django.tasks.signals import task_enqueued, task_finished, task_started
    except ImportError:
        from django_tasks.exceptions import TaskResultDoesNotExist
        from django_tasks.signals import task_enqueued, task_finished, task_started

        from django_tasks import TaskResultStatus, default_task_backend

pytestmark = pytest.mark.verify

TASKS = "tests.integrations.django_project.tasks"


@pytest.fixture
def tasks(database: str) -> Iterator[Any]:
    """The module, with its app and Django at the database of this test."""
    from tests.integrations.django_project import tasks

    with pointed_at(database), changed(OUTRIDER_APP=f"{TASKS}:app"):
        before = tasks.app.settings
        tasks.app.relocate(replace(before, dsn=database))
        call_command("migrate", run_syncdb=True, verbosity=0)
        yield tasks
        tasks.app.relocate(before)


def drain(tasks: Any) -> Any:
    async def drained() -> Any:
        async with tasks.app as app:
            return await app.drain()

    return asyncio.run(drained())


def jobs(database: str) -> list[Any]:
    with psycopg.connect(database) as conn:
        return conn.execute("select queue, priority, run_at, status from outrider.job order by id").fetchall()


def test_a_task_commits_with_its_transaction_and_has_a_result(tasks: Any) -> None:
    with transaction.atomic():
        result = tasks.invoice.enqueue("o-1", copies=2)
    assert result.status == TaskResultStatus.READY
    assert tasks.invoice.get_result(result.id).status == TaskResultStatus.READY
    assert drain(tasks).jobs == 1
    found = tasks.invoice.get_result(result.id)
    assert (found.status, found.return_value) == (TaskResultStatus.SUCCESSFUL, {"order": "o-1", "copies": 2})
    assert (found.args, found.kwargs, found.errors, found.attempts) == (["o-1"], {"copies": 2}, [], 1)
    assert found.enqueued_at <= found.started_at <= found.finished_at
    assert tasks.Invoice.objects.get().order_id == "o-1"
    result.refresh()
    assert result.is_finished


def test_a_task_goes_with_its_transaction(tasks: Any, database: str) -> None:
    with transaction.atomic():
        result = tasks.invoice.enqueue("o-1")
        transaction.set_rollback(True)
    assert jobs(database) == []
    with pytest.raises(TaskResultDoesNotExist):
        tasks.invoice.get_result(result.id)


def test_without_a_transaction_it_commits_at_once(tasks: Any, database: str) -> None:
    tasks.returning_nothing.enqueue()
    assert [status for *_, status in jobs(database)] == ["pending"]
    assert not connection.in_atomic_block


def test_priority_queue_and_time_are_those_of_the_job(tasks: Any, database: str) -> None:
    then = timezone.now() + timedelta(hours=2)
    made = tasks.invoice.using(priority=7, queue_name="default", run_after=then).enqueue("o-1")
    assert jobs(database) == [("default", 7, then, "pending")]
    assert tasks.invoice.get_result(made.id).task.priority == 7


def test_contexts_and_coroutines(tasks: Any) -> None:
    first, second, third = tasks.attempt.enqueue(), tasks.later.enqueue("abc"), tasks.returning_nothing.enqueue()
    assert drain(tasks).jobs == 3
    found = [default_task_backend.get_result(each.id).return_value for each in (first, second, third)]
    assert found == [1, "ABC", None]


def test_a_failed_attempt_is_tried_again_and_a_dead_letter_has_failed(tasks: Any) -> None:
    once, never = tasks.failing.enqueue("now and then"), tasks.failing.enqueue("for good")
    drain(tasks)
    waiting, dead = tasks.failing.get_result(once.id), tasks.failing.get_result(never.id)
    assert (waiting.status, dead.status) == (TaskResultStatus.READY, TaskResultStatus.FAILED)
    assert waiting.errors[0].exception_class is OSError
    assert waiting.errors[0].traceback == "OSError: the mail server is away"
    assert "it never works" in dead.errors[0].traceback
    assert (waiting.attempts, dead.attempts) == (1, 1)
    assert dead.finished_at is not None
    with pytest.raises(ValueError, match="failed"):
        _ = dead.return_value


def test_a_result_that_cannot_be_kept_is_a_failure_that_says_so(tasks: Any) -> None:
    fits, long = tasks.returning.enqueue(5000, "y" * 5000), tasks.returning.enqueue(9000)
    drain(tasks)
    found = tasks.returning.get_result(fits.id)
    assert (len(found.return_value), found.args) == (5000, [])  # no room for the arguments
    failed = tasks.returning.get_result(long.id)
    assert failed.status == TaskResultStatus.FAILED
    assert "its return value cannot be kept" in failed.errors[0].traceback


def test_only_tasks_are_called(tasks: Any, database: str) -> None:
    with psycopg.connect(database) as conn:
        payload = f'{{"path": "{TASKS}.plain", "backend": "default", "args": [], "kwargs": {{}}}}'
        conn.execute("select outrider.enqueue('django.task', %s::jsonb)", [payload])
    drain(tasks)
    with psycopg.connect(database) as conn:
        assert conn.execute("select status, last_error from outrider.job").fetchone() == (
            "failed",
            f"TerminalError: {TASKS}.plain is not a task",
        )


def test_what_is_refused_leaves_the_transaction_usable(tasks: Any, database: str) -> None:
    with transaction.atomic():
        with pytest.raises(TypeError, match="JSON serializable"):
            tasks.invoice.enqueue(object())
        with pytest.raises(EnqueueRefused):
            tasks.invoice.enqueue("\0")
        tasks.invoice.enqueue("o-1")
    assert len(jobs(database)) == 1


def test_signals(tasks: Any) -> None:
    told: list[tuple[str, str]] = []

    def enqueued(task_result: Any, **_: Any) -> None:
        told.append(("enqueued", task_result.status))

    def started(task_result: Any, **_: Any) -> None:
        told.append(("started", task_result.status))

    def finished(task_result: Any, **_: Any) -> None:
        told.append(("finished", task_result.status))

    pairs = ((task_enqueued, enqueued), (task_started, started), (task_finished, finished))
    for signal, receiver in pairs:
        signal.connect(receiver)
    try:
        tasks.returning_nothing.enqueue()
        drain(tasks)
    finally:
        for signal, receiver in pairs:
            signal.disconnect(receiver)
    assert told == [("enqueued", "READY"), ("started", "RUNNING"), ("finished", "SUCCESSFUL")]


@pytest.mark.parametrize("unknown", ["nonsense", "01a1dee3-17b7-74fd-a81d-000000000001"])
def test_an_unknown_id(tasks: Any, unknown: str) -> None:
    with pytest.raises(TaskResultDoesNotExist):
        default_task_backend.get_result(unknown)


def test_the_system_check_says_what_is_missing(tasks: Any) -> None:
    assert list(default_task_backend.check()) == []
    with changed(OUTRIDER_APP="tests.integrations.django_project.events:app"):
        [found] = default_task_backend.check()
        assert (found.id, "serve_tasks(app)" in (found.hint or "")) == ("outrider.E002", True)
    with changed(OUTRIDER_APP=None):
        [found] = default_task_backend.check()
        assert (found.id, "OUTRIDER_APP is not set" in found.msg) == ("outrider.E001", True)
