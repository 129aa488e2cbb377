"""Upkeep: segments ahead, retention, what is left behind. Decided and done in SQL; here is who asks for it, and when."""
