"""Outrider's events, one handler with four partitions."""

from __future__ import annotations

from benchmarks.peers.outrider_events import Events
from benchmarks.peers.peer import main


class FourPartitions(Events):
    partitions = 4


if __name__ == "__main__":
    main(FourPartitions)
