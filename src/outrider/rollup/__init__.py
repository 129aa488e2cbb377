"""Rollups: many small facts, staged and grouped inside Postgres, become one event."""
