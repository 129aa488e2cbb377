"""Everything that speaks to Postgres. The only package that imports psycopg."""
