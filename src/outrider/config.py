"""The settings of one process. Each comes from its argument, else from the environment, else from its default."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, cast, get_args

from outrider import names
from outrider.errors import ConfigError
from outrider.payload import DEFAULT_LIMIT
from outrider.retry import Duration, option_duration, parse_duration

Notify = Literal["commit", "after_commit", "off"]
Serves = Literal["adopt", "strict"]
TRUE = {"1", "true", "yes", "on"}
FALSE = {"", "0", "false", "no", "off"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    context: str
    """The bounded context of this process: the source of the events that it publishes. OUTRIDER_CONTEXT."""
    contexts: frozenset[str] | None = None
    """All contexts. When given, a publish to an unknown target is refused."""
    owns: frozenset[str] = frozenset()
    """The schemas that hold the tables of this context. `outrider doctor` finds roles of others that may write them."""
    roles: frozenset[str] = frozenset()
    """The database roles of this context, beside those whose name is the context's or begins with it and `_`."""
    content_classes: frozenset[str] = frozenset()
    """Content classes that this app publishes, beside the four. `outrider setting allow-content-class` allows them."""
    dsn: str | None = field(default=None, repr=False)
    """A libpq connection string or URL. It may hold a password, so it is never shown. OUTRIDER_DSN, or OUTRIDER_DSN_FILE:
    the path of a file that holds only the DSN."""
    embedded: bool = False
    """Run on the embedded Postgres in .outrider/pg instead of a DSN. OUTRIDER_EMBEDDED."""
    schema: str = "outrider"
    """The schema of Outrider's tables. OUTRIDER_SCHEMA."""
    generation: int = 0
    """The deployment generation, one number per release. Old and new code can run side by side, and each handles the events
    of its own generation (docs/rollout.md). 0 = generations are not used. OUTRIDER_GENERATION."""
    generations: Serves = "adopt"
    """What a worker takes of other generations: `adopt`: what has no worker of its own; `strict`: nothing, unless an
    operator moves it (`outrider generations move`). OUTRIDER_GENERATIONS."""
    payload_limit: int = DEFAULT_LIMIT
    """The largest payload in bytes, 1 KiB to 64 MiB. OUTRIDER_PAYLOAD_LIMIT."""
    pool_size: int = 4
    """The most connections in the pool of this process, at least 1. A worker opens as many again. OUTRIDER_POOL_SIZE."""
    listen_dsn: str | None = field(default=None, repr=False)
    """A direct DSN for LISTEN, where `dsn` is a transaction pooler: LISTEN does not work there. OUTRIDER_LISTEN_DSN."""
    notify: Notify = "commit"
    """Who wakes the workers: `commit`: the publishing transaction; `after_commit`: hooks after it, and workers watch the
    log's sequence; `off`: nobody, workers poll. OUTRIDER_NOTIFY."""
    poll: float | None = None
    """Seconds between polls when nothing wakes a worker; None = 30, or 5 while it cannot listen. OUTRIDER_POLL."""
    upkeep: bool = True
    """Whether workers do upkeep. Turn it off where `outrider upkeep` runs by itself (docs/upkeep.md). OUTRIDER_UPKEEP."""
    allow_orphans: bool = False
    """Register a new subscription even if it looks like a renamed one. OUTRIDER_ALLOW_ORPHANS."""

    def __post_init__(self) -> None:
        for name, value in (("context", self.context), ("schema", self.schema)):
            if wrong := names.wrong_word(value):
                raise ConfigError(f"{name}: {wrong}")
        if self.context == "outrider":
            raise ConfigError("context: 'outrider' is the context of Outrider's own events: choose another name")
        if self.schema.startswith("pg_"):
            raise ConfigError("schema: Postgres reserves names that begin with pg_")
        for target in self.contexts or ():
            if wrong := names.wrong_word(target):
                raise ConfigError(f"contexts: {wrong}")
        for option, given in (("owns", self.owns), ("roles", self.roles)):
            if nameless := [each for each in given if not isinstance(each, str) or not each]:
                raise ConfigError(f"{option}: {nameless[0]!r} is no name")
        for added in self.content_classes:
            if wrong := names.wrong_word(added):
                raise ConfigError(f"content_classes: {wrong}")
        if self.embedded and self.dsn is not None:
            raise ConfigError("embedded and dsn exclude each other: drop one of them")
        if not 0 <= self.generation < 2**63:
            raise ConfigError(f"generation: {self.generation} is not between 0 and 2**63 - 1")
        if self.generations not in get_args(Serves):
            raise ConfigError(f"generations: {self.generations!r} is none of {', '.join(get_args(Serves))}")
        if not 1024 <= self.payload_limit <= 64 * 1024 * 1024:
            raise ConfigError(f"payload_limit: {self.payload_limit} is not between 1,024 and 67,108,864 bytes")
        if self.notify not in get_args(Notify):
            raise ConfigError(f"notify: {self.notify!r} is none of {', '.join(get_args(Notify))}")
        if self.poll is not None and not 0.01 <= self.poll <= 3600:
            raise ConfigError(f"poll: {self.poll} is not between 0.01 and 3,600 seconds")
        if self.pool_size < 1:
            raise ConfigError(f"pool_size: {self.pool_size} is not at least 1")

    @classmethod
    def load(
        cls,
        *,
        context: str | None = None,
        contexts: Iterable[str] | None = None,
        owns: Iterable[str] = (),
        roles: Iterable[str] = (),
        content_classes: Iterable[str] = (),
        dsn: str | None = None,
        embedded: bool | None = None,
        schema: str | None = None,
        generation: int | None = None,
        generations: Serves | None = None,
        payload_limit: int | None = None,
        pool_size: int | None = None,
        listen_dsn: str | None = None,
        notify: Notify | None = None,
        poll: Duration | None = None,
        environ: Mapping[str, str] | None = None,
    ) -> Settings:
        env = os.environ if environ is None else environ
        several = {"contexts": contexts, "owns": owns, "roles": roles, "content_classes": content_classes}
        for option, given in several.items():
            if isinstance(given, str):
                raise ConfigError(f"{option}: {given!r} is one text, not several: write [{given!r}]")
        asked = embedded
        if embedded is None:
            embedded = dsn is None and _flag(env, "OUTRIDER_EMBEDDED")
        if not asked:
            dsn = dsn or secret_of(env, "OUTRIDER_DSN")
        if embedded and not asked and dsn is not None:
            raise ConfigError("OUTRIDER_EMBEDDED and OUTRIDER_DSN exclude each other: unset one of them")
        return cls(
            context=context or env.get("OUTRIDER_CONTEXT") or "default",
            contexts=None if contexts is None else frozenset(contexts),
            owns=frozenset(owns),
            roles=frozenset(roles),
            content_classes=frozenset(content_classes),
            dsn=dsn,
            embedded=embedded,
            schema=schema or env.get("OUTRIDER_SCHEMA") or "outrider",
            generation=_number(env, "OUTRIDER_GENERATION", 0) if generation is None else generation,
            generations=generations or cast(Serves, env.get("OUTRIDER_GENERATIONS", "").strip().lower() or "adopt"),
            payload_limit=_number(env, "OUTRIDER_PAYLOAD_LIMIT", DEFAULT_LIMIT)
            if payload_limit is None
            else payload_limit,
            pool_size=_number(env, "OUTRIDER_POOL_SIZE", 4) if pool_size is None else pool_size,
            listen_dsn=listen_dsn or secret_of(env, "OUTRIDER_LISTEN_DSN"),
            notify=notify or cast(Notify, env.get("OUTRIDER_NOTIFY", "").strip().lower() or "commit"),
            poll=_seconds(env, "OUTRIDER_POLL") if poll is None else option_duration("poll", poll).total_seconds(),
            upkeep=_flag(env, "OUTRIDER_UPKEEP", default="on"),
            allow_orphans=_flag(env, "OUTRIDER_ALLOW_ORPHANS"),
        )


def secret_of(env: Mapping[str, str], name: str) -> str | None:
    """The variable, or the content of the file that <name>_FILE names: files are better protected than an environment."""
    file = env.get(f"{name}_FILE")
    if not file:
        return env.get(name) or None
    if env.get(name):
        raise ConfigError(f"{name} and {name}_FILE exclude each other: unset one of them")
    try:
        found = Path(file).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise ConfigError(f"{name}_FILE names {file}, which cannot be read: {reason}") from None
    if not found:
        raise ConfigError(f"{name}_FILE names {file}, which is empty")
    return found


def _flag(env: Mapping[str, str], name: str, default: str = "") -> bool:
    value = env.get(name, "").strip().lower() or default
    if value not in TRUE | FALSE:
        raise ConfigError(f"{name}={env[name]!r} is neither true (1, yes, on) nor false (0, no, off)")
    return value in TRUE


def _number(env: Mapping[str, str], name: str, default: int) -> int:
    value = env.get(name, "").strip()
    if not value:
        return default
    try:
        return int(value)
    except ValueError:
        raise ConfigError(f"{name}={value!r} is not a whole number") from None


def _seconds(env: Mapping[str, str], name: str) -> float | None:
    value = env.get(name, "").strip()
    if not value:
        return None
    try:
        return parse_duration(int(value) if value.isdecimal() else value).total_seconds()
    except ConfigError as error:
        raise ConfigError(f"{name}: {error}") from None
