"""The schema: migrations, registration of subscriptions, uninstall."""
