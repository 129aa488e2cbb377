"""Settings, URLs and a server of a Django project with the asgi.py of docs/dashboard.md. Prints its address, the session of
a superuser, and that of another user."""

from __future__ import annotations

import asyncio
import os
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.urls import path
from psycopg.conninfo import conninfo_to_dict

_database: dict[str, Any] = conninfo_to_dict(os.environ["OUTRIDER_DSN"])

SECRET_KEY = "not a secret: a test on the loopback interface"
ALLOWED_HOSTS = ["127.0.0.1"]
ROOT_URLCONF = __name__
INSTALLED_APPS = ["django.contrib.auth", "django.contrib.contenttypes", "django.contrib.sessions"]
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": _database["dbname"],
        "USER": _database["user"],
        "PASSWORD": _database.get("password", ""),
        "HOST": _database["host"],
        "PORT": _database["port"],
    }
}


def hello(_: HttpRequest) -> HttpResponse:
    return HttpResponse("hello from Django")


urlpatterns = [path("hello", hello)]


def session_of(name: str, *, superuser: bool) -> str:
    from django.contrib.auth import BACKEND_SESSION_KEY, HASH_SESSION_KEY, SESSION_KEY
    from django.contrib.auth.models import User
    from django.contrib.sessions.backends.db import SessionStore

    user = User.objects.create_user(name, is_superuser=superuser)
    session = SessionStore()
    session[SESSION_KEY], session[HASH_SESSION_KEY] = str(user.pk), user.get_session_auth_hash()
    session[BACKEND_SESSION_KEY] = "django.contrib.auth.backends.ModelBackend"
    session.save()
    return str(session.session_key)


async def serve(*sessions: str) -> None:
    import asgi  # type: ignore[import-not-found]

    from outrider.dashboard.server import serving

    async with asgi.application.router.lifespan_context(asgi.application), serving(asgi.application, port=0) as address:
        print(address, *sessions, flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    import django
    from django.core.management import call_command

    django.setup()
    call_command("migrate", verbosity=0)
    found = session_of("ada", superuser=True), session_of("grace", superuser=False)
    asyncio.run(serve(*found))
