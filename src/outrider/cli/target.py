"""Where a command works: which app, which database, which schema. Options win over the app's own settings.

The app is `--app module:name`, else OUTRIDER_APP, else `app` in pyproject.toml.
"""

from __future__ import annotations

import asyncio
import importlib
import os
import sys
import tomllib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import Annotated, Self, TypeVar

import typer

from outrider.app import Outrider
from outrider.cli.options import OptionGroup
from outrider.config import Settings
from outrider.error_text import describe
from outrider.errors import ConfigError
from outrider.inbox.inbox import Inbox
from outrider.postgres.admin.tenants import refuse_hidden
from outrider.postgres.connection import AsyncSession, NearestTime
from outrider.postgres.schema.migrate import check_needed
from outrider.relay.relay import Relay
from outrider.subscription import Subscription
from outrider.worker.schedule_loop import Scheduled

T = TypeVar("T")
D = TypeVar("D", Relay, Inbox)

SchemaOption = Annotated[
    str | None,
    typer.Option("--schema", metavar="NAME", help="The schema. Default: the app's, OUTRIDER_SCHEMA, or outrider."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
VARIABLE = "OUTRIDER_APP"


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
    def scheduled(self) -> tuple[Scheduled, ...]:
        return () if self.app is None else self.app.scheduled

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
                "no database: give --dsn, or name an app that has one with --app or OUTRIDER_APP. OUTRIDER_DSN, "
                "OUTRIDER_DSN_FILE and dsn under [tool.outrider] in pyproject.toml count too. "
                "For development, --embedded uses the Postgres in .outrider/pg"
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


def find_app(asked: str | None) -> Outrider | None:
    """None when no app is named. Modules of the current folder can be imported, as with `python -m`."""
    for name, named_by in (
        (asked, "--app"),
        (os.environ.get(VARIABLE), VARIABLE),
        (in_pyproject("app", "shop:app"), "[tool.outrider] app in pyproject.toml"),
    ):
        if name:
            return _load(name, named_by)
    return None


def need_app(asked: str | None) -> Outrider:
    if (found := find_app(asked)) is None:
        raise ConfigError(
            "no app: name it with --app module:app, in OUTRIDER_APP, or as app under [tool.outrider] in pyproject.toml"
        )
    return found


def find_declared(kind: str, declared: Iterable[D], name: str) -> D:
    """The relay, inbox or the like of an app that has this name."""
    found = {each.name: each for each in declared}
    if name not in found:
        raise ConfigError(f"{name!r} is no {kind} of the app; it declares: {', '.join(found) or 'none'}")
    return found[name]


def in_pyproject(setting: str, example: str) -> str | None:
    """A string under [tool.outrider] in the pyproject.toml of the current folder."""
    file = Path("pyproject.toml")
    if not file.is_file():
        return None
    try:
        found: object = tomllib.loads(file.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file.resolve()} is not valid TOML: {error}") from None
    for step in ("tool", "outrider", setting):
        found = found.get(step) if isinstance(found, dict) else None
    if found is not None and not isinstance(found, str):
        raise ConfigError(
            f'[tool.outrider] {setting} in {file.resolve()} is not a string: write it like {setting} = "{example}"'
        )
    return found


def parts_of(name: str, named_by: str) -> tuple[str, str]:
    """The module and the name in it."""
    module_name, _, attribute = name.partition(":")
    if not (module_name and attribute):
        raise ConfigError(f"{named_by} names {name!r}: write it as module:name, like shop:app")
    return module_name, attribute


def _load(name: str, named_by: str) -> Outrider:
    module_name, attribute = parts_of(name, named_by)
    module = _import(module_name, named_by)
    apps = [f"{module_name}:{key}" for key, value in vars(module).items() if isinstance(value, Outrider)]
    instead = f"name it as {' or '.join(apps)}" if apps else "create one there: app = Outrider(context=...)"
    if not hasattr(module, attribute):
        raise ConfigError(f"{named_by} names {name!r}, but {module_name} has no {attribute!r}: {instead}")
    found = getattr(module, attribute)
    if not isinstance(found, Outrider):
        raise ConfigError(f"{named_by} names {name!r}, which is a {type(found).__name__}, not an Outrider: {instead}")
    return found


def _import(module_name: str, named_by: str) -> ModuleType:
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{module_name}.".startswith(f"{error.name}."):
            raise ConfigError(
                f"{named_by} names the module {module_name!r}, which is neither in {here} nor installed: "
                "run this in the folder that holds it, or correct the name"
            ) from None
        raise _broken(module_name, error) from error
    except (Exception, SystemExit) as error:
        raise _broken(module_name, error) from error


def _broken(module_name: str, error: BaseException) -> ConfigError:
    reason = describe(error).splitlines()[0]
    return ConfigError(
        f"importing {module_name!r} failed with {reason}; for the traceback run: python -c 'import {module_name}'"
    )
