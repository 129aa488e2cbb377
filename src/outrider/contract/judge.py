"""`judge`: every broken promise, and what to do about it. The inputs and the day are passed in."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from datetime import date

from outrider.contract.change import compare
from outrider.contract.compatibility import Misfit, MisfitKind, fits
from outrider.contract.document import Contract, reading
from outrider.contract.inputs import EventClass, Known, Snapshot
from outrider.contract.report import Block, ContractFinding, ContractReport, FindingKind
from outrider.registry import EventSpec


def judge(known: Known, today: date) -> ContractReport:
    """Compares published events with their snapshots, readers with those of their producers, and deprecations with today."""
    blocks = [*_published(known, today), *_viewed(known, today), *_files(known)]
    return ContractReport(
        published=len(known.owned),
        views=len(known.views),
        past=sum(_is_past(kept.contract, known) for kept in known.kept.values()),
        blocks=[block for block in blocks if block.findings],
    )


def _published(known: Known, today: date) -> Iterator[Block]:
    broken = {(each.type, each.version) for each in known.unreadable if each.ours}
    for (kind, version), owner in known.owned.items():
        findings = []
        if (kind, version) not in broken:
            findings += _since_snapshot(known.current[kind, version], known.kept.get((kind, version)), known.folder)
        if known.newest[kind] == version or known.named(owner):
            findings += _reads(owner, known)
        if owner.spec.deprecated_after is not None:
            findings.append(_ending_own(owner, owner.spec.deprecated_after, known, today))
        yield Block(kind, version, owner.name, findings)


def _since_snapshot(current: Contract, kept: Snapshot | None, folder: str) -> list[ContractFinding]:
    if kept is None:
        file = f"{folder}/{current.type}.v{current.version}.json"
        fix = f"run outrider contracts snapshot, and commit {file}"
        return [ContractFinding(FindingKind.NO_SNAPSHOT, f"has no snapshot in {folder}", fix)]
    changes = compare(kept.contract, current)
    if not changes:
        return []
    if any(change.breaks for change in changes):
        return [
            ContractFinding(
                FindingKind.BREAKING, f"breaks the promise of {kept.where}:", breaking_fix(current), changes
            )
        ]
    fix = f"run outrider contracts snapshot, and commit {kept.where}"
    return [ContractFinding(FindingKind.OUTDATED, f"has outgrown {kept.where}:", fix, changes)]


def breaking_fix(current: Contract) -> str:
    version = current.version
    return (
        f"leave version {version} as it was, and declare the change as version={version + 1} with "
        f"upcasters={{{version}: ...}};\n"
        f"only if nothing was ever published as version {version}: outrider contracts snapshot --force"
    )


def _viewed(known: Known, today: date) -> Iterator[Block]:
    for view in known.views:
        spec, versions = view.spec, known.versions(view.spec.type)
        findings = [*_reads(view, known), *_unheard(view, versions.values())] if versions else [_unknown(view, known)]
        producer = versions.get(spec.version)
        if producer is not None and producer.contract.deprecated_after is not None:
            findings.append(_ending_view(producer.contract, producer.contract.deprecated_after, max(versions), today))
        yield Block(spec.type, spec.version, f"the view {view.name}", findings)


def _unheard(view: EventClass, versions: Collection[Snapshot]) -> Iterator[ContractFinding]:
    """Fields with a default that no version has: misspelt, or renamed by the producer. Upcasters may make anything."""
    if view.spec.upcasters:
        return
    published = {name for each in versions for name in each.contract.schema.get("properties", {})}
    for name, field in view.model.model_fields.items():
        alias = field.validation_alias or name
        if not field.is_required() and isinstance(alias, str) and published.isdisjoint({name, alias}):
            yield ContractFinding(
                FindingKind.UNHEARD,
                f"{alias}: is in no version that is published, so it always has its default",
                "correct the name, or do without the field",
            )


def _unknown(view: EventClass, known: Known) -> ContractFinding:
    file = f"{view.spec.type}.v{view.spec.version}.json"
    return ContractFinding(
        FindingKind.NO_PRODUCER,
        "reads an event without a snapshot of its producer",
        f"copy {file} from the producer's folder into {known.folder}, or name that folder with --against",
    )


def _reads(reader: EventClass, known: Known) -> list[ContractFinding]:
    """One finding per version that this class will receive and cannot read.

    An owner that nobody in its apps subscribes to need not read what it writes, only what is older.
    """
    spec = reader.spec
    versions = known.versions(spec.type)
    if not spec.foreign:
        # What it has become since its snapshot is another finding.
        versions[spec.version] = Snapshot(known.current[spec.type, spec.version], "as it is now")
    newer = spec.foreign or known.named(reader)
    found = []
    view = reading(reader.model)
    for version, kept in versions.items():
        start = next((start for start in spec.upcasters if start >= version), None)
        misfits: Sequence[Misfit] = []
        if version >= spec.version:
            misfits = fits(view, kept.contract) if newer else []
        elif start is None:
            misfits = fits(view, kept.contract)
        elif start > version and start in versions:
            misfits = fits(versions[start].contract.schema, kept.contract)
        elif start > version:
            found.append(_hole(version, start))
        if misfits:
            found.append(_misfit(reader, version, kept, misfits, start))
    return found


def _hole(version: int, start: int) -> ContractFinding:
    return ContractFinding(
        FindingKind.HOLE,
        f"reads version {version} with the upcaster of version {start}, of which there is no snapshot",
        f"add an upcaster from {version}: upcasters={{{version}: ...}};\n"
        f"or restore the snapshot of version {start}, if version {version} fits it",
    )


def _misfit(
    reader: EventClass, version: int, kept: Snapshot, misfits: Sequence[Misfit], start: int | None
) -> ContractFinding:
    spec, producer = reader.spec, kept.contract.producer or "its producer"
    if start is not None:
        says = f"reads version {version} with the upcaster of version {start}, which it does not fit:"
        return ContractFinding(
            FindingKind.MISFIT, says, f"add an upcaster from {version}: upcasters={{{version}: ...}}", misfits
        )
    if not spec.foreign and version < spec.version:
        says = f"cannot read every event of version {version}, which logs may still hold ({kept.where}):"
    elif version == spec.version:
        says = f"cannot read every event that {producer} publishes ({kept.where}):"
    else:
        says = f"cannot read every event that {producer} publishes as version {version} ({kept.where}):"
    return ContractFinding(
        FindingKind.MISFIT, says, _ways(spec, version, {each.kind for each in misfits}, producer), misfits
    )


def _ways(spec: EventSpec, version: int, kinds: set[MisfitKind], producer: str) -> str:
    """What the reader can do about it, one line for each way."""
    ways = []
    if MisfitKind.MISSING in kinds:
        ask = f", or ask {producer} for a version that has it" if spec.foreign else ""
        ways.append(f"do without the field, or give it a default{ask}")
    if MisfitKind.OPTIONAL in kinds:
        ways.append("give it a default")
    if MisfitKind.TYPED in kinds:
        ways.append("read it as it is published")
    if version < spec.version:
        return f"add an upcaster from {version}: upcasters={{{version}: ...}};\nor {_joined(ways)}"
    if version > spec.version:
        return f"read version {version} instead: version={version}, with upcasters from the older ones;\nor {_joined(ways)}"
    return ";\n".join(ways)


def _joined(ways: list[str]) -> str:
    return ways[0] if len(ways) == 1 else "give the fields defaults, and read them as they are published"


def _ending_own(owner: EventClass, end: date, known: Known, today: date) -> ContractFinding:
    readers = known.readers(owner.spec.type, owner.spec.version)
    still = f"known readers: {', '.join(readers)}" if readers else "no reader is known here"
    fix = f"publish a newer version or none, and remove the class when nobody reads it any more;\n{still}"
    return _ending("is deprecated", end, today, fix)


def _ending_view(contract: Contract, end: date, newest: int, today: date) -> ContractFinding:
    newer = f"read version {newest} instead" if newest > contract.version else "do without it"
    fix = f"{newer}, or ask {contract.producer or 'its producer'} for more time"
    return _ending(f"reads version {contract.version}, which is deprecated", end, today, fix)


def _ending(what: str, end: date, today: date, fix: str) -> ContractFinding:
    left = (end - today).days
    if left < 0:
        return ContractFinding(FindingKind.EXPIRED, f"{what} after {end}: that was {_days(-left)} ago", fix)
    return ContractFinding(FindingKind.DEPRECATED, f"{what} after {end}: {_days(left)} left", fix)


def _files(known: Known) -> Iterator[Block]:
    """Findings on snapshot files: unreadable, without their class, unused, or an outdated copy."""
    for each in known.unreadable:
        fix = "restore it from version control" if each.ours else "correct it where it comes from"
        if each.ours:
            fix += "; or delete it and run outrider contracts snapshot, if it never held a promise"
        yield Block(
            each.type,
            each.version,
            each.where,
            [ContractFinding(FindingKind.UNREADABLE, f"cannot be read: {each.why}", fix)],
        )
    for key, kept in sorted(known.kept.items(), key=lambda item: item[0]):
        contract = kept.contract
        if key in known.owned or _is_past(contract, known):
            continue
        if contract.type in known.newest or contract.producer in known.contexts:
            yield Block(*key, kept.where, [_gone(contract)])
        elif all(view.spec.type != contract.type for view in known.views):
            yield Block(*key, kept.where, [_stray(contract)])
        elif key in known.against and compare(kept.contract, known.against[key].contract):
            yield Block(*key, kept.where, [_old_copy(known.against[key], kept, known)])


def _is_past(contract: Contract, known: Known) -> bool:
    """Its class was removed, and a newer version exists. The snapshot stays as long as a log may hold such events."""
    return (contract.type, contract.version) not in known.owned and contract.version < known.newest.get(
        contract.type, 0
    )


def _gone(contract: Contract) -> ContractFinding:
    return ContractFinding(
        FindingKind.GONE,
        f"has no class any more: {contract.producer or 'somebody'} promised it, and no app that was loaded declares it",
        "restore the class if it was renamed or removed by mistake, or name the app that has it with --app too;\n"
        f"to retire the event, delete the file when nobody reads {contract.type} any more and no log holds it",
    )


def _stray(contract: Contract) -> ContractFinding:
    producer = contract.producer or "its producer"
    return ContractFinding(
        FindingKind.STRAY,
        "nobody here publishes or reads it",
        f"if it is a promise of yours, name the app of {producer} with --app too, or restore its class;\n"
        "if it is a copy that no view needs any more, delete it",
    )


def _old_copy(lent: Snapshot, kept: Snapshot, known: Known) -> ContractFinding:
    changes = compare(kept.contract, lent.contract)
    return ContractFinding(
        FindingKind.OLD_COPY,
        f"is a copy that differs from {lent.where}, which counts:",
        f"copy it again, or delete it from {known.folder}",
        changes,
    )


def _days(number: int) -> str:
    return f"{number} day{'' if number == 1 else 's'}"
