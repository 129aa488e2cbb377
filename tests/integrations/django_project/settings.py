from __future__ import annotations

import os
from typing import Any

from psycopg.conninfo import conninfo_to_dict


def database(dsn: str, **options: Any) -> dict[str, Any]:
    """A DSN as Django writes it."""
    parts: dict[str, Any] = conninfo_to_dict(dsn)
    given = {key.upper(): str(parts[name]) for name, key in NAMES.items() if parts.get(name) is not None}
    return {"ENGINE": "django.db.backends.postgresql", **given, "OPTIONS": options}


NAMES = {"dbname": "name", "user": "user", "password": "password", "host": "host", "port": "port"}

SECRET_KEY = "for tests"
INSTALLED_APPS = ["outrider.integrations.django", "tests.integrations.django_project"]
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
USE_TZ = True
LOGGING_CONFIG = None
OUTRIDER_APP = os.environ.get("TEST_APP", "tests.integrations.django_project.events:app")
OUTRIDER_DATABASE = os.environ.get("TEST_ALIAS", "default")
OUTRIDER_MIGRATE = os.environ.get("TEST_MIGRATE", "1") == "1"
DATABASES: dict[str, Any] = {
    "default": database(os.environ["TEST_DSN"]) if "TEST_DSN" in os.environ else {},
    "lite": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"},
}
TASKS = {"default": {"BACKEND": "outrider.integrations.django.tasks.OutriderBackend"}}
