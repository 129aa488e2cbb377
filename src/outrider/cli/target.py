"""Where a command works: which app, which database, which schema. Options win over the app's own settings."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated, Self, TypeVar

import typer

from outrider.app import Outrider
from outrider.cli.find import find_app, in_pyproject, need_app
from outrider.cli.options import OptionGroup
from outrider.config import Settings
from outrider.errors import ConfigError
from outrider.postgres.admin.tenants import refuse_hidden
from outrider.postgres.connection import AsyncSession, NearestTime
from outrider.postgres.schema.migrate import check_needed
from outrider.schedule import Schedule
from outrider.subscription import Subscription

T = TypeVar("T")

SchemaOption = Annotated[
    str | None,
    typer.Option("--schema", metavar="NAME", help="The schema. Default: the app's, OUTRIDER_SCHEMA, or outrider."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]


@dataclass(frozen=True)
class Location(OptionGroup):
    """The options `--app`, `--dsn`, `--embedded` and `--schema`, and what they lead to."""

    panel = "Common options"
    comes_last = True

    app_name: Annotated[
        str | None,
        typer.Option(
            "--app",
            metavar="MODULE:NAME",
            help="The app, like shop:app. Default: OUTRIDER_APP, or app in pyproject.toml.",
        ),
    ] = None
    dsn: Annotated[
        str | None,
        typer.Option(
            "--dsn",
            metavar="DSN",
            help="The database, a URL or libpq string. "
            "Default: the app's, OUTRIDER_DSN, OUTRIDER_DSN_FILE, or dsn in pyproject.toml.",
        ),
    ] = None
    embedded: Annotated[bool, typer.Option("--embedded", help="Use the embedded Postgres in .outrider/pg.")] = False
    schema_name: SchemaOption = None

    def __post_init__(self) -> None:
        if self.dsn and self.embedded:
            raise typer.BadParameter("--dsn and --embedded exclude each other: drop one of them")

    def within(self, ctx: typer.Context) -> Self:
        """Options before the subcommand apply, unless they are given again after it."""
        found = self.over(ctx.obj) if isinstance(ctx.obj, type(self)) else self
        ctx.obj = found
        return found

    def over(self, outer: Self) -> Self:
        elsewhere = bool(self.dsn or self.embedded)
        return replace(
            self,
            app_name=self.app_name or outer.app_name,
            dsn=self.dsn if elsewhere else outer.dsn,
            embedded=self.embedded if elsewhere else outer.embedded,
            schema_name=self.schema_name or outer.schema_name,
        )

    @cached_property
    def app(self) -> Outrider | None:
        return find_app(self.app_name)

    def need_app(self) -> Outrider:
        return self.app or need_app(self.app_name)

    @cached_property
    def settings(self) -> Settings:
        if self.app is None:
            found = Settings.load(dsn=self.dsn, embedded=self.embedded or None, schema=self.schema_name)
        else:
            found = self._moved(self.app.settings)
        if found.dsn is None and not found.embedded:
            return replace(found, dsn=in_pyproject("dsn", "postgresql://localhost/shop"))
        return found

    def _moved(self, settings: Settings) -> Settings:
        """An app's listen_dsn belongs to its own database, so another database does not take it over."""
        if self.dsn or self.embedded:
            listen_dsn = None if self.embedded else Settings.load(dsn=self.dsn).listen_dsn
            settings = replace(settings, dsn=self.dsn, embedded=self.embedded, listen_dsn=listen_dsn)
        return replace(settings, schema=self.schema_name) if self.schema_name else settings


@dataclass(frozen=True)
class Target(Location):
    """The database, the schema and the app of a command, and whether it prints JSON."""

    as_json: JsonOption = False

    def over(self, outer: Self) -> Self:
        return replace(super().over(outer), as_json=self.as_json or outer.as_json)

    @property
    def schema(self) -> str:
        return self.settings.schema

    @property
    def subscriptions(self) -> tuple[Subscription, ...] | None:
        """Those that the app declares; None without an app."""
        return None if self.app is None else self.app.subscriptions

    @property
    def schedules(self) -> tuple[Schedule, ...]:
        return () if self.app is None else self.app.schedules

    def run(
        self, work: Callable[[AsyncSession], Awaitable[T]], *, migrated: bool = True, every_tenant: bool = False
    ) -> T:
        """Does the work in a session of its own."""

        async def connected() -> T:
            async with self.connect(migrated=migrated, every_tenant=every_tenant) as conn:
                return await work(conn)

        return asyncio.run(connected())

    @asynccontextmanager
    async def connect(self, *, migrated: bool = True, every_tenant: bool = False) -> AsyncIterator[AsyncSession]:
        """A session in which every statement is its own transaction.

        `migrated` requires a schema that has what this code needs. `every_tenant` requires that no policy hides rows.
        """
        settings = self.settings
        if settings.dsn is None and not settings.embedded:
            raise ConfigError(
                "no database: give --dsn, set OUTRIDER_DSN or OUTRIDER_DSN_FILE, write dsn under [tool.outrider] in "
                "pyproject.toml, or name an app that has one with --app; "
                "for development, --embedded runs one in .outrider/pg"
            )
        app = Outrider(dsn=settings.dsn, embedded=settings.embedded, schema=settings.schema, notify=settings.notify)
        async with app, app.connect() as conn:
            await conn.set_autocommit(True)
            conn.adapters.register_loader("timestamptz", NearestTime)
            if migrated:
                await check_needed(conn, self.schema)
            if every_tenant:
                await refuse_hidden(conn, self.schema)
            yield conn
