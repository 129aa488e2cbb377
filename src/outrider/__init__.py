"""Outrider carries events out of a Postgres transaction and makes sure that every subscriber acts on each of them."""
