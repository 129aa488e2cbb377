"""Which jobs: the options that the commands of jobs share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated
from uuid import UUID

import typer

from outrider.cli.options import OptionGroup
from outrider.errors import ConfigError
from outrider.postgres.admin.bulk_jobs import BulkVerb, JobFilter


class JobState(StrEnum):
    running = "running"
    pending = "pending"
    failed = "failed"
    cancelled = "cancelled"
    done = "done"


@dataclass(frozen=True)
class JobFilterOptions(OptionGroup):
    panel = "Which jobs"

    job_type: Annotated[
        str | None, typer.Option("--type", metavar="TYPE", help="Only this job type, or this name of a job of events.")
    ] = None
    states: Annotated[
        list[JobState] | None,
        typer.Option("--state", metavar="STATE", help="running, pending, failed, cancelled or done. Repeatable."),
    ] = None
    queue: Annotated[str | None, typer.Option("--queue", metavar="NAME", help="Only this queue.")] = None
    key: Annotated[str | None, typer.Option("--key", metavar="KEY", help="Only jobs of this key.")] = None
    workspace: Annotated[str | None, typer.Option("--workspace", metavar="ID", help="Only this tenant.")] = None
    payload: Annotated[
        list[str] | None,
        typer.Option(
            "--payload",
            metavar="FIELD=VALUE",
            help="Only jobs whose payload has this text, number or boolean: order_id=7, customer.country=DE. Repeatable.",
        ),
    ] = None

    @property
    def given(self) -> bool:
        return any((self.job_type, self.states, self.queue, self.key, self.workspace, self.payload))

    @property
    def filter(self) -> JobFilter:
        return self.filter_of([each.value for each in self.states or ()])

    def filter_of(self, states: Sequence[str]) -> JobFilter:
        fields = {}
        for each in self.payload or ():
            path, sign, value = each.partition("=")
            if not sign or path in fields:
                raise typer.BadParameter(f"--payload: {each:.60} is not FIELD=VALUE, each field once")
            fields[path] = value
        try:
            return JobFilter(self.job_type, self.queue, self.key, self.workspace, tuple(states), fields)
        except ConfigError as error:
            raise typer.BadParameter(str(error)) from None


@dataclass(frozen=True)
class ChosenJobs(JobFilterOptions):
    """For commands that change them: all jobs only on request."""

    everything: Annotated[bool, typer.Option("--all", help="Every job, without a filter.")] = False

    def check(self, verb: BulkVerb, job_ids: Sequence[UUID] | None) -> JobFilter | None:
        """None: the ids name the jobs."""
        which = self.filter
        if job_ids:
            if which or self.everything:
                raise typer.BadParameter("give the ids of jobs, or a filter, not both")
            return None
        if self.everything and which:
            raise typer.BadParameter("--all and a filter exclude each other: drop one of them")
        if not self.everything and not which:
            raise typer.BadParameter("name jobs or give a filter; for every job, --all")
        try:
            return which.acted_on(verb)
        except ConfigError as error:
            raise typer.BadParameter(str(error)) from None
