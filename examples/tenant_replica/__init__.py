"""Two services with a database each, a broker between them, and tenants who are kept apart in both."""
