"""A Postgres that needs no installation: out of a wheel, shared by the processes of a project, gone with them."""

from __future__ import annotations

from outrider.postgres.embedded.server import Embedded

__all__ = ["Embedded"]
