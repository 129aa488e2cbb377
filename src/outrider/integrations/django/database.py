"""Reads from Django's settings which database holds the log, and which app to load."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from django.conf import settings
from django.db import DEFAULT_DB_ALIAS, connections

from outrider.config import Settings
from outrider.errors import ConfigError
from outrider.postgres.orm_transaction import address

if TYPE_CHECKING:
    from outrider.app import Outrider

APP, DATABASE = "OUTRIDER_APP", "OUTRIDER_DATABASE"


def alias() -> str:
    return getattr(settings, DATABASE, None) or DEFAULT_DB_ALIAS


def dsn() -> str:
    """The DSN of that database."""
    name = alias()
    if name not in connections:
        raise ConfigError(f"settings.{DATABASE} is {name!r}, and DATABASES has no such alias: correct one of them")
    conn, instead = connections[name], f"set {DATABASE} to an alias in Postgres, or OUTRIDER_DSN to its address"
    if conn.vendor != "postgresql":
        kind = "no database" if conn.vendor == "unknown" else conn.vendor
        raise ConfigError(f"DATABASES[{name!r}] is {kind}, and the log is in Postgres: {instead}")
    if conn.settings_dict["OPTIONS"].get("assume_role"):
        raise ConfigError(
            f"DATABASES[{name!r}] has assume_role: set OUTRIDER_DSN to an address that logs in as that role"
        )
    return address(conn.get_connection_params())


def named_app() -> str:
    """The path of the app."""
    path: str | None = getattr(settings, APP, None)
    if not path:
        raise ConfigError(f'settings.{APP} is not set: name your app there, like {APP} = "shop.events:app"')
    return path


def load_app(path: str) -> Outrider:
    """After `django.setup()`, so that its module can import models."""
    module_name, _, attribute = path.partition(":")
    if not (module_name and attribute):
        raise ConfigError(f"{path!r} names no app: write it as module:name, like shop.events:app")
    try:
        module = import_module(module_name)
    except Exception as error:
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        raise ConfigError(f"the app is {path!r}, and importing {module_name!r} failed with {reason}") from error
    found = getattr(module, attribute, None)
    if not isinstance(getattr(found, "settings", None), Settings):
        what = f"which is a {type(found).__name__}" if hasattr(module, attribute) else "which is not there"
        raise ConfigError(f"the app is {path!r}, {what}: create it as app = Outrider(context=...)")
    return found  # type: ignore[return-value]
