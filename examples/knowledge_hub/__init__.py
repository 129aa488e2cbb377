"""A knowledge hub in SQL: an imported document is announced once, and not once per piece."""
