"""The catalogue of event types: who publishes and who consumes each version, and where the log, the subscriptions in the
database, the classes of the app and the snapshots of its contracts differ."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime
from pathlib import Path

from outrider.app import Outrider
from outrider.contract import Consumer, ContractFinding, FindingKind, Known, judge
from outrider.contract.catalogue import fields_of
from outrider.contract.declared import DeclaringApp, known_of, module_of
from outrider.contract.text import words
from outrider.postgres.admin.activity import Flow
from outrider.postgres.admin.status import Standing, Status
from outrider.registry import registry
from outrider.subscription import Subscription


@dataclass(frozen=True, slots=True)
class Difference:
    what: str
    details: Sequence[str] = ()
    fix: str = ""
    grave: bool = True
    """Something breaks, or would."""
    version: int | None = None


@dataclass(slots=True)
class TypeVersion:
    version: int
    declared: str | None = None
    """The class that publishes it."""
    snapshot: str | None = None
    """The file of its snapshot."""
    deprecated_after: date | None = None
    newest_at: datetime | None = None
    """When the newest event occurred, of those that were searched."""
    fields: list[tuple[str, str, bool, str, str]] = field(default_factory=list)
    """Path, type, required, default, description."""


@dataclass(slots=True)
class EventType:
    name: str
    versions: dict[int, TypeVersion] = field(default_factory=dict)
    publishers: set[str] = field(default_factory=set)
    consumers: list[Standing] = field(default_factory=list)
    differences: list[Difference] = field(default_factory=list)
    key: str | None = None
    description: str | None = None

    @property
    def newest_at(self) -> datetime | None:
        return max((each.newest_at for each in self.versions.values() if each.newest_at), default=None)

    def concerns(self, context: str) -> bool:
        return context in self.publishers or any(each.context == context for each in self.consumers)

    def of(self, version: int) -> TypeVersion:
        return self.versions.setdefault(version, TypeVersion(version))


def declared_by(app: Outrider, folder: Path) -> Known:
    """What this process declares. An app without a declaration, as of `outrider dashboard --dsn`, declares nothing."""
    consumers = [Consumer(each.name, each.context, each.events) for each in app.subscriptions]
    module = module_of(app)
    context = app.settings.context
    first = dict.fromkeys(registry, context) if module or consumers else {}
    return known_of([DeclaringApp(context, module, consumers)], first, folder)


def catalogued(
    status: Status, flows: Sequence[Flow], known: Known, subscriptions: Sequence[Subscription], today: date
) -> list[EventType]:
    """`flows`: of the newest events. `subscriptions`: those that the app declares."""
    found: dict[str, EventType] = {}

    def of(name: str) -> EventType:
        return found.setdefault(name, EventType(name))

    for flow in flows:
        version = of(flow.event_type).of(flow.event_version)
        version.newest_at = max(filter(None, (version.newest_at, flow.newest_at)))
        of(flow.event_type).publishers.add(flow.source)
    for each in status.subscriptions:
        for name in each.event_types or ():
            of(name).consumers.append(each)
    for rollup in status.rollups:
        for name in rollup.emits:
            of(name).publishers.add(rollup.context)
    for name in sorted({each.spec.type for each in known.declared}):
        _declare(of(name), known)
    for one in found.values():
        one.differences += _unlike(one, known)
    for name, difference in _registered(status.subscriptions, subscriptions):
        of(name).differences.append(difference)
    unkept = () if Path(known.folder).is_dir() else (FindingKind.NO_SNAPSHOT, FindingKind.NO_PRODUCER)
    for block in judge(known, today).blocks:
        of(block.type).differences += [
            _judged(each, block.version, block.subject) for each in block.findings if each.kind not in unkept
        ]
    return [found[name] for name in sorted(found)]


def _declare(one: EventType, known: Known) -> None:
    promised = known.versions(one.name)
    for version, kept in promised.items():
        contract = known.current.get((one.name, version), kept.contract)
        row, owner = one.of(version), known.owned.get((one.name, version))
        row.declared = owner.name if owner else None
        row.snapshot = known.kept[one.name, version].where if (one.name, version) in known.kept else None
        row.deprecated_after = owner.spec.deprecated_after if owner else contract.deprecated_after
        row.fields = [
            (path, words(each.shape), each.required, each.default or "", each.description or "")
            for path, each in fields_of(contract.object)
        ]
        if contract.producer:
            one.publishers.add(contract.producer)
        one.key, one.description = contract.key, contract.description


def _unlike(one: EventType, known: Known) -> Iterator[Difference]:
    """The log and the subscriptions against what is declared here."""
    promised = known.versions(one.name)
    for version, row in sorted(one.versions.items()):
        if known.declared and row.newest_at is not None and promised and version not in promised:
            told = f"version {version} is in the log, and neither a class nor a snapshot of it is known here"
            yield Difference(told, fix="deploy the code that declares it, or copy its snapshot here", version=version)
    if one.consumers and not one.publishers:
        names = ", ".join(sorted(each.name for each in one.consumers))
        yield Difference(
            f"{names} wants it, and nobody is known to publish it", fix="is its type misspelt?", grave=False
        )


def _registered(stored: Iterable[Standing], declared: Sequence[Subscription]) -> Iterator[tuple[str, Difference]]:
    """What a subscription wants in the database, against its declaration."""
    by_name = {each.name: each for each in declared}
    for each in stored:
        if (own := by_name.get(each.name)) is None or each.kind == "inbox":
            continue
        wanted = {spec.type for model in own.events if (spec := model.__outrider__) is not None}
        have = set(each.event_types or ())
        fix = "outrider migrate registers it"
        for name in sorted(wanted - have if each.event_types is not None else ()):
            yield (
                name,
                Difference(f"{each.name} is declared to take it, and the database does not know that yet", fix=fix),
            )
        for name in sorted(have - wanted if wanted else ()):
            told = f"{each.name} takes it in the database, and the code here does not declare that"
            yield (
                name,
                Difference(told, fix=f"deploy newer code, or outrider subscription narrow {each.name}", grave=False),
            )


def _judged(finding: ContractFinding, version: int, subject: str) -> Difference:
    return Difference(
        f"{subject} {finding.says}", [str(each) for each in finding.details], finding.fix, finding.fails, version
    )
