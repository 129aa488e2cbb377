"""python -m examples.django_tasks [DSN]: sign up twice, run the task, read its result.

Without a DSN on the embedded Postgres in .outrider/pg.
"""

from __future__ import annotations

import asyncio
import os
import sys
from contextlib import ExitStack

from outrider.postgres.embedded import Embedded


async def drain() -> str:
    from examples.django_tasks.accounts.outbox import app

    async with app:
        return str(await app.drain())


def story() -> None:
    import django
    from django.core.management import call_command

    os.environ["DJANGO_SETTINGS_MODULE"] = "examples.django_tasks.settings"
    django.setup()
    call_command("migrate", verbosity=0)
    from django.contrib.auth.models import User
    from examples.django_tasks.accounts.views import sign_up

    result = sign_up("ada", "ada@example.org")
    print("enqueued:", result.status)
    try:
        sign_up("ada2", "ada@example.org")
    except ValueError as refused:
        print("refused:", refused)
    print(asyncio.run(drain()))
    result.refresh()
    print("result:", result.status, result.return_value)
    print("users:", User.objects.count())


def main(dsn: str | None = None) -> None:
    with ExitStack() as stack:
        if dsn is None:
            server = stack.enter_context(Embedded())
            server.ensure_database("django_tasks")
            dsn = server.dsn("django_tasks")
        os.environ["OUTRIDER_DSN"] = dsn
        story()
        from django.db import connections

        connections.close_all()


if __name__ == "__main__":
    main(*sys.argv[1:2])
