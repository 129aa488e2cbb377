"""Where a command works: which database, which schema, whose subscriptions. Options win over the app's own settings."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Annotated

import typer

from outrider.app import Outrider
from outrider.cli.find import find_app, in_pyproject
from outrider.config import Settings
from outrider.errors import ConfigError
from outrider.postgres.admin.tenants import refuse_hidden
from outrider.postgres.connection import AsyncSession, NearestTime
from outrider.postgres.schema.migrate import check_needed
from outrider.schedule import Schedule
from outrider.subscription import Subscription

AppOption = Annotated[
    str | None,
    typer.Option(
        "--app",
        metavar="MODULE:NAME",
        help="The app, like shop:app; its database, schema and subscriptions are used. "
        "Else OUTRIDER_APP, else app under \\[tool.outrider] in pyproject.toml.",
    ),
]
DsnOption = Annotated[
    str | None,
    typer.Option(
        "--dsn",
        metavar="DSN",
        help="The database, a URL or libpq string. Else the app's, else OUTRIDER_DSN, else the file that "
        "OUTRIDER_DSN_FILE names, else dsn under \\[tool.outrider] in pyproject.toml.",
    ),
]
EmbeddedOption = Annotated[bool, typer.Option("--embedded", help="The embedded Postgres in .outrider/pg, not a DSN.")]
SchemaOption = Annotated[
    str | None,
    typer.Option("--schema", metavar="NAME", help="The schema. Else the app's, else OUTRIDER_SCHEMA, else outrider."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]


@dataclass(frozen=True, slots=True)
class Asked:
    """What the options of one command line say."""

    app: str | None = None
    dsn: str | None = None
    embedded: bool = False
    schema: str | None = None

    def __post_init__(self) -> None:
        if self.dsn and self.embedded:
            raise typer.BadParameter("--dsn and --embedded exclude each other: drop one of them")

    def over(self, outer: Asked) -> Asked:
        """These options where given, else those given before the subcommand."""
        elsewhere = not (self.dsn or self.embedded)
        return Asked(
            app=self.app or outer.app,
            dsn=outer.dsn if elsewhere else self.dsn,
            embedded=outer.embedded if elsewhere else self.embedded,
            schema=self.schema or outer.schema,
        )


@dataclass(frozen=True, slots=True)
class Place:
    settings: Settings
    subscriptions: tuple[Subscription, ...] | None = None
    """Those that the app declares; None without an app."""
    schedules: tuple[Schedule, ...] = ()

    @property
    def schema(self) -> str:
        return self.settings.schema

    @asynccontextmanager
    async def connect(self, *, migrated: bool = True, every_tenant: bool = False) -> AsyncIterator[AsyncSession]:
        """A session in which every statement is its own transaction. `migrated`: the schema has what this code needs.
        `every_tenant`: no policy hides rows from it."""
        if self.settings.dsn is None and not self.settings.embedded:
            raise ConfigError(
                "no database: give --dsn, set OUTRIDER_DSN or OUTRIDER_DSN_FILE, write dsn under [tool.outrider] in "
                "pyproject.toml, or name an app that has one with --app; "
                "for development, --embedded runs one in .outrider/pg"
            )
        settings = self.settings
        there = Outrider(dsn=settings.dsn, embedded=settings.embedded, schema=settings.schema, notify=settings.notify)
        async with there, there.connect() as conn:
            await conn.set_autocommit(True)
            conn.adapters.register_loader("timestamptz", NearestTime)
            if migrated:
                await check_needed(conn, self.schema)
            if every_tenant:
                await refuse_hidden(conn, self.schema)
            yield conn


def find_place(asked: Asked) -> Place:
    app = find_app(asked.app)
    if app is None:
        return Place(_somewhere(Settings.load(dsn=asked.dsn, embedded=asked.embedded or None, schema=asked.schema)))
    return Place(moved(app.settings, asked), app.subscriptions, app.schedules)


def moved(settings: Settings, asked: Asked) -> Settings:
    """An app's settings, but where the options say. Its listen_dsn is that of its own database."""
    if asked.dsn or asked.embedded:
        listen_dsn = None if asked.embedded else Settings.load(dsn=asked.dsn).listen_dsn
        settings = replace(settings, dsn=asked.dsn, embedded=asked.embedded, listen_dsn=listen_dsn)
    return _somewhere(replace(settings, schema=asked.schema) if asked.schema else settings)


def _somewhere(settings: Settings) -> Settings:
    """The database that pyproject.toml names, when nobody else names one."""
    if settings.dsn is not None or settings.embedded:
        return settings
    return replace(settings, dsn=in_pyproject("dsn", "postgresql://localhost/shop"))
