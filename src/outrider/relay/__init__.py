"""Relays: the log, sent on to the streams of a broker, each event once and in order."""
