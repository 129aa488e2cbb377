"""Everything that speaks to Postgres. The only package that imports psycopg."""

try:
    __import__("psycopg")
except ImportError as missing:
    raise ImportError(
        "Outrider needs libpq, the client library of Postgres: install it (Debian: apt install libpq5), or psycopg with its "
        f"own: pip install 'outrider[binary]'. psycopg says: {' '.join(str(missing).split())}"
    ) from None
