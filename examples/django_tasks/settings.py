"""What a project adds to run its tasks with Outrider: TASKS, and OUTRIDER_APP."""

from __future__ import annotations

import os

from psycopg.conninfo import conninfo_to_dict

_database = conninfo_to_dict(os.environ["OUTRIDER_DSN"])

SECRET_KEY = "not a secret: an example on the loopback interface"
INSTALLED_APPS = ["django.contrib.contenttypes", "django.contrib.auth", "outrider.integrations.django"]
USE_TZ = True

DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": _database.get("dbname"),
        "USER": _database.get("user", ""),
        "PASSWORD": _database.get("password", ""),
        "HOST": _database.get("host", ""),
        "PORT": _database.get("port", ""),
    }
}

OUTRIDER_APP = "examples.django_tasks.accounts.outbox:app"

TASKS = {"default": {"BACKEND": "outrider.integrations.django.tasks.OutriderBackend"}}
