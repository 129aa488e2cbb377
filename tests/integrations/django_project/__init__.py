"""A Django project for tests: the app of some processes, and of the test process itself."""
