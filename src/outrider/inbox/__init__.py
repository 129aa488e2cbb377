"""Inboxes: the stream of another service, read into this database, each event once and in order."""
