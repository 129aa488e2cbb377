"""The inputs of a check: the event classes that apps declare, their readers, and the snapshots that were found."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from outrider.contract.change import promised
from outrider.contract.document import Contract
from outrider.event import Event, spec_of
from outrider.registry import EventSpec

Key = tuple[str, int]


@dataclass(frozen=True, slots=True)
class EventClass:
    """An event class, owned or a view, and the context of the app that declares it."""

    model: type[Event]
    context: str

    @property
    def spec(self) -> EventSpec:
        return spec_of(self.model)

    @property
    def name(self) -> str:
        return f"{self.model.__module__}.{self.model.__qualname__}"


@dataclass(frozen=True, slots=True)
class Consumer:
    """A subscription of one of the apps."""

    name: str
    context: str
    models: tuple[type[Event], ...]
    """Empty = every event."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    contract: Contract
    where: str
    """The file that it was read from."""


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A file that is named like a snapshot but cannot be read as one."""

    type: str
    version: int
    where: str
    why: str
    ours: bool
    """The file is in the folder of the apps, not in one to check against."""


@dataclass(frozen=True)
class Known:
    declared: Sequence[EventClass]
    consumers: Sequence[Consumer] = ()
    kept: Mapping[Key, Snapshot] = field(default_factory=dict)
    """The snapshots in the folder of the apps: their own, and copies of those of other producers."""
    against: Mapping[Key, Snapshot] = field(default_factory=dict)
    """The snapshots in the folders to check against."""
    unreadable: Sequence[Unreadable] = ()
    folder: str = "contracts"
    contexts: Collection[str] = ()
    """The contexts of the apps: every event that they have promised must still exist."""

    @cached_property
    def owned(self) -> dict[Key, EventClass]:
        found = {(each.spec.type, each.spec.version): each for each in self.declared if not each.spec.foreign}
        return {key: found[key] for key in sorted(found)}

    @cached_property
    def views(self) -> list[EventClass]:
        found = [each for each in self.declared if each.spec.foreign]
        return sorted(found, key=lambda each: (each.spec.type, each.spec.version, each.name))

    @cached_property
    def current(self) -> dict[Key, Contract]:
        """The contracts of the owned classes as they are now, with what else their snapshots have promised."""
        made = {key: Contract.of(each.model, each.context) for key, each in self.owned.items()}
        return {
            key: promised(self.kept[key].contract, each) if key in self.kept else each for key, each in made.items()
        }

    @cached_property
    def newest(self) -> dict[str, int]:
        """The newest version of each owned type."""
        return dict(iter(self.owned))

    def versions(self, event_type: str) -> dict[int, Snapshot]:
        """Every version of a type that anybody has promised: its snapshot, or its class where there is no snapshot."""
        live = {key: Snapshot(contract, self.owned[key].name) for key, contract in self.current.items()}
        first, second = (self.against, self.kept) if event_type not in self.newest else (self.kept, {})
        found = {**live, **second, **first}
        return {version: found[kind, version] for kind, version in sorted(found) if kind == event_type}

    def named(self, declared: EventClass) -> bool:
        """Whether a subscription reads this very class."""
        return any(declared.model in consumer.models for consumer in self.consumers)

    def readers(self, event_type: str, version: int) -> list[str]:
        """The views and subscriptions that read this version, directly or through an upcaster."""

        def reads(spec: EventSpec) -> bool:
            return spec.type == event_type and (spec.version == version or version in spec.upcasters)

        views = [each.name for each in self.views if reads(each.spec)]
        direct = [
            each.name
            for each in self.consumers
            if any(reads(spec) for spec in map(spec_of, each.models) if not spec.foreign)
        ]
        return sorted(views) + sorted(direct)
