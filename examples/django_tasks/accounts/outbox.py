from __future__ import annotations

from outrider import Backoff, Outrider
from outrider.integrations.django.tasks import serve_tasks

app = Outrider(context="accounts")
serve_tasks(app, retry=Backoff.table("10s", "1m"), timeout="5m")
