"""Rollups: many small facts, staged and grouped inside Postgres, become one event."""

from outrider.rollup.rollup import Check, Column, Notification, Parent

__all__ = ["Check", "Column", "Notification", "Parent"]
