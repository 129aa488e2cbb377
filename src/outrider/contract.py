"""Contracts between the contexts that publish events and those that read them. Values and decisions, no I/O."""
