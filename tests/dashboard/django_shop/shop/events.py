"""The app that docs/dashboard.md imports."""

from tests.dashboard.shop import app

__all__ = ["app"]
