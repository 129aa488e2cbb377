"""Listeners of the signals: what operators see."""
