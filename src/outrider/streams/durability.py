"""Settings with which a broker could lose what it has acknowledged. Pure functions of what the broker reports."""

from __future__ import annotations

from typing import Any

from outrider.streams.stream import Weakness
from outrider.streams.url import Address

REPLICAS = 3


def redis_weaknesses(address: Address, info: dict[str, Any] | None, config: dict[Any, Any]) -> list[Weakness]:
    """Of the answers to INFO and CONFIG GET appendfsync; None and empty where the user may not ask."""
    if info is None:
        hidden = f"{address} does not tell this user how it stores its data"
        return [Weakness(hidden, "let the user of the URL run INFO, or ask the operator of the server", grave=False)]
    found = []
    sync = next(iter(config.values()), "always")
    sync = sync.decode() if isinstance(sync, bytes) else sync
    if not info.get("aof_enabled"):
        found.append(
            Weakness(
                f"{address} has no append-only file: a restart loses everything since the last snapshot",
                "set appendonly yes; until then a relay sends again what is missing, and readers see it twice",
            )
        )
    elif info.get("aof_last_write_status", "ok") != "ok":
        found.append(Weakness(f"{address} could not write its append-only file", "look at its disk and its log"))
    elif sync != "always":
        span = "a second" if sync == "everysec" else "half a minute"
        found.append(
            Weakness(
                f"{address} writes its append-only file with a delay ({sync}): a power cut may lose {span}",
                "set appendfsync always if that is too much; a relay sends again what is missing",
                grave=False,
            )
        )
    policy = info.get("maxmemory_policy", "noeviction")
    if policy != "noeviction":
        found.append(
            Weakness(
                f"{address} evicts keys when its memory is full ({policy}): whole streams would be lost",
                "set maxmemory-policy noeviction: then it refuses appends, and the relay waits",
                grave=bool(info.get("maxmemory")),
            )
        )
    return found


def jetstream_weaknesses(address: Address, config: dict[str, Any], version: object) -> list[Weakness]:
    """Of the configuration of a stream."""
    stream, found = config["name"], []
    if config.get("storage") != "file":
        found.append(
            Weakness(
                f"the stream {stream} at {address} is kept in memory: a restart loses it",
                "create it again with storage: file; a relay sends again what is missing",
            )
        )
    replicas = config.get("num_replicas", 1)
    if replicas < REPLICAS:
        copies = "one copy" if replicas == 1 else f"{replicas} copies"
        found.append(
            Weakness(
                f"the stream {stream} at {address} has {copies}, and the server (NATS {version}) writes it to disk every "
                "two minutes unless sync_interval says otherwise: a power cut may lose that much",
                "use three replicas, or sync_interval: always; a relay sends again what is missing",
                grave=False,
            )
        )
    return found
