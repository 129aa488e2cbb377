"""An embedded Postgres: it comes in a wheel, is shared by the processes of a project, and stops with the last of them."""

from __future__ import annotations

from outrider.postgres.embedded.server import Embedded

__all__ = ["Embedded"]
