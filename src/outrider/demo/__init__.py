"""A small shop on an embedded Postgres: what `outrider demo` runs, and a place to read how the API is used."""
