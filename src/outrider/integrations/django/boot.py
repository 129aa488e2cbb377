"""The app of a Django project for the outrider command, in whatever process: `--app outrider.integrations.django.boot:app`.

Django is set up first. An attribute that is itself a path, like `boot:shop.events:app`, is that app instead of the one in
settings.OUTRIDER_APP.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import django
from django.apps import apps

from outrider.errors import ConfigError
from outrider.integrations.django import database

if TYPE_CHECKING:
    from outrider.app import Outrider


def __getattr__(name: str) -> Outrider:
    if name != "app" and ":" not in name:
        raise AttributeError(name)
    if not apps.ready:
        _set_up()
    app = database.load_app(database.named_app() if name == "app" else name)
    if app.settings.dsn is None and not app.settings.embedded:
        app.relocate(replace(app.settings, dsn=database.dsn()))
    return app


def _set_up() -> None:
    try:
        django.setup()
    except Exception as error:
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        raise ConfigError(
            f"Django cannot be set up: {reason}; for the traceback run: python manage.py check"
        ) from error
