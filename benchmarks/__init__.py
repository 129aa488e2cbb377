"""Measurements: `make bench`. Everything is compared within one run, as ratios and counters; the seconds are this
machine's own and only there for orientation."""
