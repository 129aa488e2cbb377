"""Django in the test process: set up once, without its environment variable; the database changes from test to test."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import django
from django.conf import settings as current
from django.db import connections

from . import settings

if not current.configured:
    current.configure(**{name: value for name, value in vars(settings).items() if name.isupper() and name != "NAMES"})
    django.setup()


@contextmanager
def pointed_at(dsn: str, *, alias: str = "default", **options: Any) -> Iterator[None]:
    """DATABASES[alias] is this database, in every thread that has not used that alias yet."""
    made = connections.configure_settings({"default": settings.database(dsn, **options)})
    before = connections.settings.get(alias)
    connections.settings[alias] = made["default"]
    if any(each.alias == alias for each in connections.all(initialized_only=True)):
        forget(alias)
    try:
        yield
    finally:
        forget(alias)
        connections.settings.pop(alias)
        if before is not None:
            connections.settings[alias] = before


def forget(alias: str = "default") -> None:
    """Close this thread's connection, which belongs to the settings that it was made with."""
    if connections[alias].connection is not None:
        connections[alias].close()
    del connections[alias]


@contextmanager
def changed(**values: Any) -> Iterator[None]:
    before = {name: getattr(current, name) for name in values}
    for name, value in values.items():
        setattr(current, name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(current, name, value)
