"""The dashboard: an ASGI app that shows and does what `outrider status`, `doctor`, `event`, `dlq` and `job` do.

It holds no SQL. Everything that it reads or does goes through `outrider.postgres.admin` and `outrider.doctor`.
"""

from outrider.dashboard.access import ACTIONS, Proxy, User
from outrider.dashboard.site import Dashboard

__all__ = ["ACTIONS", "Dashboard", "Proxy", "User"]
