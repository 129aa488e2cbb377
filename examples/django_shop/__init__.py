"""A Django project that publishes in its views and handles with its ORM."""
