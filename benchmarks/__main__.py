"""`python -m benchmarks [NAME]`: which benchmark to run. Without a name: the cursor."""

from __future__ import annotations

import sys
from collections.abc import Callable

from benchmarks import before, bounds, cursor, dispatch, jobs, log_volume, operational, relay
from benchmarks.peers import run as peers

BENCHMARKS: dict[str, tuple[str, Callable[[list[str]], None]]] = {
    "before": ("handlers, jobs and publish of this checkout beside those of another commit", before.main),
    "bounds": ("publish with and without the bound on payloads", bounds.main),
    "cursor": ("publish and the exact cursor, beside the plainest SQL (the default)", cursor.main),
    "dispatch": ("handlers: drain, one row per event, pickup latency, publish with subscribers", dispatch.main),
    "jobs": ("jobs: drain; claims with a million waiting and an old snapshot", jobs.main),
    "log": ("bytes of log lines per event, at info and at debug", log_volume.main),
    "operational": (
        "one worker, idle and at 300 events/s: sessions, memory, statements, CPU, WAL, log",
        operational.main,
    ),
    "peers": ("Outrider, Graphile Worker, PgQueuer, procrastinate and bare SQL, in one run", peers.main),
    "relay": (
        "relays: into Redis Streams and NATS JetStream, beside the raw append of the same client",
        relay.main,
    ),
}


def main(arguments: list[str]) -> None:
    if arguments and arguments[0] in BENCHMARKS:
        _, run = BENCHMARKS[arguments[0]]
        run(arguments[1:])
    elif {"-h", "--help"} & set(arguments):
        print("usage: python -m benchmarks [NAME] [OPTIONS]\n")
        for name, (about, _) in BENCHMARKS.items():
            print(f"  {name:11} {about}")
        print("\npython -m benchmarks NAME --help shows the options of one.")
    else:
        cursor.main(arguments)


main(sys.argv[1:])
