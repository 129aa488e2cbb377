"""A backend for Django's Tasks: `enqueue()` inserts a job into the open transaction, and a worker of the app runs it.

Django 6 has the framework as django.tasks. For older versions the package django-tasks has it, as django_tasks.
"""

from __future__ import annotations

import builtins
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from socket import gethostname
from typing import TYPE_CHECKING, Any, Unpack
from uuid import UUID

from django.core.checks import CheckMessage, Error
from django.db import close_old_connections, connections, transaction
from django.utils import timezone
from django.utils.module_loading import import_string

from outrider.errors import ConfigError, TerminalError
from outrider.integrations.django import database
from outrider.job import Job
from outrider.postgres.admin.jobs import JobRow
from outrider.postgres.statement import statement
from outrider.worker.job_context import SyncJobContext
from outrider.worker.job_handler import JobOptions
from outrider.worker.job_runner import RESULT_BYTES

if TYPE_CHECKING:
    from django.tasks import task_backends
    from django.tasks.backends.base import BaseTaskBackend
    from django.tasks.base import Task, TaskContext, TaskError, TaskResult, TaskResultStatus
    from django.tasks.exceptions import TaskResultDoesNotExist
    from django.tasks.signals import task_enqueued, task_finished, task_started

    from outrider.app import Outrider
else:
    try:
        from django.tasks import task_backends
        from django.tasks.backends.base import BaseTaskBackend
        from django.tasks.base import Task, TaskContext, TaskError, TaskResult, TaskResultStatus
        from django.tasks.exceptions import TaskResultDoesNotExist
        from django.tasks.signals import task_enqueued, task_finished, task_started
    except ImportError:
        from django_tasks.backends.base import BaseTaskBackend
        from django_tasks.base import Task, TaskContext, TaskError, TaskResult, TaskResultStatus
        from django_tasks.exceptions import TaskResultDoesNotExist
        from django_tasks.signals import task_enqueued, task_finished, task_started

        from django_tasks import task_backends

TYPE = "django.task"
STATUS = {
    "pending": TaskResultStatus.READY,
    "running": TaskResultStatus.RUNNING,
    "done": TaskResultStatus.SUCCESSFUL,
}
"""By the state of the job. All other states are failed ones."""


class DjangoTask(Job, type=TYPE):
    path: str
    """Where the task can be imported from."""
    backend: str
    """The alias in settings.TASKS."""
    args: list[Any]
    kwargs: dict[str, Any]


def serve_tasks(app: Outrider, **options: Unpack[JobOptions]) -> None:
    """The workers of this app run Django's tasks. The options are those of `@app.job`.

    By default every finished task leaves a receipt, because its result is kept there.
    """
    options.setdefault("keep", "1d")
    app.job(DjangoTask, **options)(_run)


class OutriderBackend(BaseTaskBackend):
    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    def enqueue(self, task: Task[Any, Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> TaskResult[Any, Any]:
        self.validate_task(task)
        app, conn = database.load_app(database.named_app()), connections[database.alias()]
        job = DjangoTask(path=task.module_path, backend=self.alias, args=_plain(args), kwargs=_plain(kwargs))
        run_at = task.run_after
        if run_at is not None and timezone.is_naive(run_at):
            run_at = timezone.make_aware(run_at)
        options: Any = {"queue": task.queue_name, "priority": task.priority, "run_at": run_at}
        if conn.in_atomic_block:
            made = app.enqueue_sync(conn, job, **options)
        else:
            with transaction.atomic(using=conn.alias):
                made = app.enqueue_sync(conn, job, **options)
        result = _result(task, made.id, job, TaskResultStatus.READY, enqueued_at=timezone.now())
        task_enqueued.send(type(self), task_result=result)
        return result

    def get_result(self, result_id: str) -> TaskResult[Any, Any]:
        row = _find(result_id)
        if row is None:
            raise TaskResultDoesNotExist(f"no trace of the task {result_id!r:.60} is kept")
        kept = row.result if row.state == "done" else json.loads(row.payload or "{}")
        if not isinstance(kept, dict) or "path" not in kept:
            raise TaskResultDoesNotExist(f"the task {result_id} was erased")
        job = DjangoTask.model_validate({name: kept[name] for name in DjangoTask.model_fields})
        task = import_string(job.path).using(
            backend=job.backend,
            queue_name=kept.get("queue", row.queue),
            priority=row.priority,
        )
        history = [each for each in row.history or [] if "message" in each]
        workers = [each["worker"] for each in history if "worker" in each]
        if row.state == "running":
            workers.append(row.worker_name or str(row.worker))
        started = _time(kept.get("started_at")) or row.claimed_at
        tried = started or _time(history[-1]["at"] if history else None)
        result = _result(
            task,
            row.id,
            job,
            STATUS.get(row.state, TaskResultStatus.FAILED),
            enqueued_at=row.created_at or _time(kept.get("enqueued_at")),
            started_at=started,
            last_attempted_at=tried,
            finished_at=row.done_at or (tried if row.state not in STATUS else None),
            errors=[_error(each["message"]) for each in history],
            worker_ids=[*workers, *([kept["worker"]] if "worker" in kept else [])],
        )
        if row.state == "done":
            _change(result, _return_value=kept["return_value"])
        return result

    def check(self, **_: Any) -> list[CheckMessage]:
        try:
            database.dsn()
            app = database.load_app(database.named_app())
        except ConfigError as error:
            return [Error(f"TASKS[{self.alias!r}]: {error}", id="outrider.E001")]
        if any(each.name == TYPE for each in app.subscriptions):
            return []
        hint = (
            "call serve_tasks(app) in the module of the app: from outrider.integrations.django.tasks import serve_tasks"
        )
        return [
            Error(f"TASKS[{self.alias!r}]: no worker of {database.named_app()} runs tasks", hint, id="outrider.E002")
        ]


def _run(job: DjangoTask, ctx: SyncJobContext) -> dict[str, Any]:
    task = import_string(job.path)
    if not isinstance(task, Task):
        raise TerminalError(f"{job.path} is not a task")
    backend, started = type(task_backends[job.backend]), timezone.now()
    result = _result(
        task,
        ctx.job_id,
        job,
        TaskResultStatus.RUNNING,
        enqueued_at=ctx.envelope.occurred_at,
        started_at=started,
        last_attempted_at=started,
        worker_ids=[f"{gethostname()}:{os.getpid()}"] * ctx.attempt,
    )
    close_old_connections()
    try:
        task_started.send(backend, task_result=result)
        context: tuple[Any, ...] = (TaskContext(task_result=result),) if task.takes_context else ()
        value = _plain(task.call(*context, *job.args, **job.kwargs))
        kept = _kept(job, ctx.queue, result, value)
        _change(result, _return_value=value, status=TaskResultStatus.SUCCESSFUL, finished_at=timezone.now())
        task_finished.send(backend, task_result=result)
        return kept
    finally:
        close_old_connections()


def _kept(job: DjangoTask, queue: str, result: TaskResult[Any, Any], value: Any) -> dict[str, Any]:
    """What the receipt holds: the row of the job is deleted. Arguments are left out if there is no room for them."""
    kept = job.model_dump() | {
        "queue": queue,
        "enqueued_at": _text(result.enqueued_at),
        "started_at": _text(result.started_at),
        "worker": result.worker_ids[-1],
        "return_value": value,
    }
    if not _fits(kept):
        kept |= {"args": [], "kwargs": {}}
    if not _fits(kept):
        raise TerminalError(
            f"the task ran, but its return value cannot be kept: it has more than {RESULT_BYTES:,} bytes, or a \\u0000. "
            "Return a reference to what it made"
        )
    return kept


def _fits(kept: dict[str, Any]) -> bool:
    text = json.dumps(kept)
    return len(text) <= RESULT_BYTES and "\\u0000" not in text


def _find(result_id: str) -> JobRow | None:
    try:
        job_id = UUID(result_id)
    except ValueError:
        return None
    schema = database.load_app(database.named_app()).settings.schema
    with connections[database.alias()].cursor() as cursor:
        cursor.execute(statement("jobs/job", schema).decode(), {"id": job_id})
        rows = [JobRow.of(row) for row in cursor.fetchall()]
    for row in rows:
        if row.subscription == TYPE:
            # Django reads jsonb as text.
            return replace(row, result=_read(row.result), history=_read(row.history))
    return None


def _result(
    task: Task[Any, Any], job_id: UUID, job: DjangoTask, status: TaskResultStatus, **known: Any
) -> TaskResult[Any, Any]:
    unknown = {"enqueued_at": None, "started_at": None, "finished_at": None, "last_attempted_at": None}
    return TaskResult(
        task=task,
        id=str(job_id),
        status=status,
        args=job.args,
        kwargs=job.kwargs,
        backend=job.backend,
        **{**unknown, "errors": [], "worker_ids": [], **known},
    )


def _change(result: TaskResult[Any, Any], **values: Any) -> None:
    """Results are frozen in some versions."""
    for name, value in values.items():
        object.__setattr__(result, name, value)


def _error(message: str) -> TaskError:
    """The history keeps the class without its module, and the message. A class that is not built in becomes Exception."""
    name = message.partition(":")[0]
    found = getattr(builtins, name, None)
    known = isinstance(found, type) and issubclass(found, BaseException)
    return TaskError(exception_class_path=f"builtins.{name if known else 'Exception'}", traceback=message)


def _plain(value: Any) -> Any:
    """As JSON gives it back. Raises TypeError or ValueError for what JSON cannot hold."""
    return json.loads(json.dumps(value, allow_nan=False))


def _read(value: Any) -> Any:
    return json.loads(value) if isinstance(value, str) else value


def _text(time: datetime | None) -> str | None:
    return None if time is None else time.isoformat()


def _time(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)
