"""`manage.py migrate` also migrates Outrider's schema and registers the app's subscriptions, also in test databases.

With OUTRIDER_MIGRATE = False in the settings, only `manage.py outrider migrate` does.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from typing import Any

from django.conf import settings
from django.db import connections

from outrider.config import Settings
from outrider.integrations.django import database
from outrider.postgres import schedules
from outrider.postgres.connection import connect
from outrider.postgres.schema.migrate import Migration, migrate
from outrider.postgres.schema.registration import refuse_renamed, register
from outrider.subscription import Subscription
from outrider.worker.schedule_loop import Scheduled


def install(using: str, verbosity: int = 1, stdout: Any = None, **_: Any) -> None:
    """Called after the migrations of all apps, for each database; acts on the one that holds the log."""
    wanted = getattr(settings, "OUTRIDER_MIGRATE", True)
    if not wanted or using != database.alias() or connections[using].vendor != "postgresql":
        return
    app = database.load_app(database.named_app()) if getattr(settings, database.APP, None) else None
    chosen = app.settings if app else Settings.load()
    done = asyncio.run(_install(database.dsn(), chosen, app.subscriptions if app else (), app.scheduled if app else ()))
    if verbosity >= 1 and done:
        names = ", ".join(each.name for each in done)
        (stdout or sys.stdout).write(f'  Outrider schema "{chosen.schema}": applied {names}\n')


async def _install(
    dsn: str, chosen: Settings, subscriptions: Sequence[Subscription], scheduled: Sequence[Scheduled]
) -> list[Migration]:
    async with await connect(dsn, autocommit=True) as conn:
        done = await migrate(conn, chosen.schema)
        if not chosen.allow_orphans:
            await refuse_renamed(conn, subscriptions, [each.name for each in subscriptions], chosen.schema)
        for each in subscriptions:
            await register(conn, each, chosen.schema)
        for one in scheduled:
            await schedules.register(conn, one.schedule, one.request, chosen.schema, chosen.context)
        return done
