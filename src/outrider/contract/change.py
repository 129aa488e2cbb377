"""`compare`: what has changed between a snapshot and the class, field by field, and what of it breaks readers.

`promised` keeps in a refreshed snapshot which fields are in every event.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from enum import StrEnum

from outrider.contract.document import Contract
from outrider.contract.schema_shape import AnyShape, Array, Object, Scalar, Shape, Union, Values, opened, options
from outrider.contract.text import words

Pairs = frozenset[tuple[int, int]]


class ChangeKind(StrEnum):
    REMOVED = "removed"
    RETYPED = "retyped"
    NEW_REQUIRED = "new_required"
    NEW_OPTIONAL = "new_optional"
    NOW_REQUIRED = "now_required"
    NOW_ABSENT = "now_absent"
    KEY = "key"
    PRODUCER = "producer"
    DEPRECATION = "deprecation"


_COMPATIBLE = {ChangeKind.NEW_OPTIONAL, ChangeKind.PRODUCER, ChangeKind.DEPRECATION}


@dataclass(frozen=True, slots=True)
class ContractChange:
    kind: ChangeKind
    path: str
    """The field, like `lines[].price`."""
    was: str | None = None
    now: str | None = None

    @property
    def breaks(self) -> bool:
        """Whether readers of this version, or events that were published before, would fail."""
        return self.kind not in _COMPATIBLE

    def __str__(self) -> str:
        match self.kind:
            case ChangeKind.REMOVED:
                return f"{self.path}: was {self.was}, is gone"
            case ChangeKind.NEW_REQUIRED:
                return f"{self.path}: is new and required, {self.now}"
            case ChangeKind.NEW_OPTIONAL:
                return f"{self.path}: is new and optional, {self.now}"
            case ChangeKind.NOW_REQUIRED:
                return f"{self.path}: was optional, is required"
            case ChangeKind.NOW_ABSENT:
                return f"{self.path}: was in every event, may be left out"
            case _:
                return f"{self.path}: was {self.was or 'none'}, is {self.now or 'none'}"


def compare(snapshot: Contract, current: Contract) -> list[ContractChange]:
    """What has changed since the snapshot was taken, in the order of its fields."""
    found = list(_compare(snapshot.object, current.object, "", frozenset()))
    beside = [
        ContractChange(ChangeKind.KEY, "the ordering key", snapshot.key, current.key),
        ContractChange(ChangeKind.PRODUCER, "the producer", snapshot.producer, current.producer),
        ContractChange(ChangeKind.DEPRECATION, "deprecated_after", _day(snapshot), _day(current)),
    ]
    return found + [change for change in beside if change.was != change.now]


def _compare(was: Shape, now: Shape, path: str, seen: Pairs) -> Iterator[ContractChange]:
    a, b = opened(was), opened(now)
    if (id(a), id(b)) in seen:
        return
    seen |= {(id(a), id(b))}
    match a, b:
        case Object(), Object() if a.is_map == b.is_map and a.rules == b.rules and _same(a.keys, b.keys, seen):
            yield from _objects(a, b, path, seen)
        case Array(), Array() if len(a.prefix) == len(b.prefix) and a.rules == b.rules:
            for place, (one, other) in enumerate(zip(a.prefix, b.prefix, strict=True)):
                yield from _compare(one, other, f"{path}[{place}]", seen)
            yield from _compare(a.items, b.items, f"{path}[]", seen)
        case Union(), Union() if a.rules == b.rules:
            yield from _unions(a, b, path, seen)
        case Values(), Values() if set(a.texts) == set(b.texts) and a.rules == b.rules:
            return
        case Scalar(), Scalar() if a.kind == b.kind and a.rules == b.rules:
            return
        case AnyShape(), AnyShape() if a.rules == b.rules:
            return
        case _:
            yield ContractChange(ChangeKind.RETYPED, path or "the event", words(was), words(now))


def _objects(was: Object, now: Object, path: str, seen: Pairs) -> Iterator[ContractChange]:
    for name, field in was.fields.items():
        at, other = step(path, name), now.fields.get(name)
        if other is None:
            yield ContractChange(ChangeKind.REMOVED, at, was=words(field.shape))
            continue
        yield from _compare(field.shape, other.shape, at, seen)
        if field.required and other.absent:
            yield ContractChange(ChangeKind.NOW_ABSENT, at)
        elif other.required and not field.required:
            yield ContractChange(ChangeKind.NOW_REQUIRED, at)
    for name, field in now.fields.items():
        if name not in was.fields:
            kind = ChangeKind.NEW_REQUIRED if field.required else ChangeKind.NEW_OPTIONAL
            yield ContractChange(kind, step(path, name), now=words(field.shape))
    if was.others is not None and now.others is not None:
        yield from _compare(was.others, now.others, step(path, "*"), seen)
    elif was.others is not now.others:
        held = [None if others is None else words(others) for others in (was.others, now.others)]
        yield ContractChange(ChangeKind.RETYPED, step(path, "*"), *held)


def _unions(was: Union, now: Union, path: str, seen: Pairs) -> Iterator[ContractChange]:
    pairs = paired(was, now, seen)
    if pairs is None:
        yield ContractChange(ChangeKind.RETYPED, path or "the event", words(was), words(now))
        return
    for one, other in pairs:
        label = None if was.tag is None else tagged(one, was.tag)
        yield from _compare(one, other, path if label is None else f"{path}({was.tag} {label})", seen)


def paired(was: Union, now: Union, seen: Pairs = frozenset()) -> list[tuple[Shape, Shape]] | None:
    """Pairs the options of two unions: equal ones first, then those that belong together. None if one has no partner."""
    left, right = list(options(was)), list(options(now))
    same = []
    for one in list(left):
        other = next((other for other in right if _same(one, other, seen)), None)
        if other is not None:
            left.remove(one)
            right.remove(other)
            same.append((one, other))
    tag = was.tag if was.tag == now.tag else None
    changed = [
        (one, other) for one in left for other in right if _belong_together(one, other, tag, len(left), len(right))
    ]
    return None if was.tag != now.tag or len(changed) != max(len(left), len(right)) else same + changed


def _belong_together(one: Shape, other: Shape, tag: str | None, left: int, right: int) -> bool:
    a, b = opened(one), opened(other)
    if isinstance(a, Object) and isinstance(b, Object):
        if tag is not None:
            return tagged(one, tag) == tagged(other, tag)
        return (left == right == 1) or (a.name is not None and a.name == b.name)
    return left == right == 1 and isinstance(a, Array) and isinstance(b, Array)


def tagged(shape: Shape, tag: str) -> str | None:
    """The value of the tag that marks this option of a union, as JSON."""
    inside = opened(shape)
    field = inside.fields.get(tag) if isinstance(inside, Object) else None
    value = None if field is None else opened(field.shape)
    return ", ".join(sorted(value.texts)) if isinstance(value, Values) else None


def _same(was: Shape | None, now: Shape | None, seen: Pairs) -> bool:
    if was is None or now is None:
        return was is now
    return not _any(_compare(was, now, "", seen))


def _any(found: Iterable[ContractChange]) -> bool:
    return next(iter(found), None) is not None


def _day(contract: Contract) -> str | None:
    return None if contract.deprecated_after is None else contract.deprecated_after.isoformat()


def step(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def promised(snapshot: Contract, current: Contract) -> Contract:
    """What a new snapshot would say. After a breaking change, that is the class alone."""
    if any(change.breaks for change in compare(snapshot, current)):
        return current
    made = replace(current, schema=json.loads(json.dumps(current.schema)))
    always: dict[int, tuple[Object, set[str]]] = {}
    for was, now in _paired_objects(snapshot.object, made.object, frozenset()):
        names = {name for name, field in was.fields.items() if field.required and name in now.fields}
        # A model may stand at several places: then it must have been required at all of them.
        always[id(now)] = (now, names & always[id(now)][1] if id(now) in always else names)
    for now, names in always.values():
        if required := sorted({*now.source.get("required", ()), *names}):
            now.source["required"] = required
    return Contract(made.schema)


def _paired_objects(was: Shape, now: Shape, seen: Pairs) -> Iterator[tuple[Object, Object]]:
    """The pairs of objects that stand at the same place."""
    a, b = opened(was), opened(now)
    if (id(a), id(b)) in seen:
        return
    seen |= {(id(a), id(b))}
    inside: list[tuple[Shape, Shape]] = []
    match a, b:
        case Object(), Object():
            yield a, b
            inside = [(a.fields[name].shape, b.fields[name].shape) for name in a.fields.keys() & b.fields.keys()]
            if a.others is not None and b.others is not None:
                inside.append((a.others, b.others))
        case Array(), Array():
            inside = [*zip(a.prefix, b.prefix, strict=True), (a.items, b.items)]
        case Union(), Union():
            inside = paired(a, b) or []
        case _:
            return
    for one, other in inside:
        yield from _paired_objects(one, other, seen)
