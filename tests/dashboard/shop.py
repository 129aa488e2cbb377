"""The app of these tests. `outrider dashboard --app` imports it too."""

from __future__ import annotations

import os

from outrider import Bury, Event, HandlerContext, Job, Outrider, RetryPolicy

HOSTILE = "</pre><script>window.owned = 1</script><img src=x onerror='window.owned = 1'>\x1b[31m\u202e\u2066"


class Placed(Event, type="dash.placed", key="order_id"):
    order_id: str
    total: str


class Mail(Job, type="dash.mail"):
    order_id: str


def make_app(dsn: str | None) -> Outrider:
    app = Outrider(context="dash", dsn=dsn)
    healed: set[str] = set()

    @app.handler(Placed, name="dash.invoice", retry=RetryPolicy(base="1h", cap="1h", jitter="none"))
    async def invoice(event: Placed, ctx: HandlerContext) -> None:
        del ctx
        if event.total == "9.90":
            raise ConnectionError("the bank does not answer")
        if event.total == HOSTILE and event.order_id not in healed:
            healed.add(event.order_id)
            raise Bury(f"the total is {event.total}")

    @app.handler(Placed, name="dash.search", partitions=2)
    async def search(event: Placed) -> None: ...

    @app.job(Mail)
    async def mail(job: Mail) -> None: ...

    app.reader(Placed, name="dash.audit")
    return app


app = make_app(os.environ.get("OUTRIDER_DSN"))
