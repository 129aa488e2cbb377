"""`fits`: what a reader needs that a producer does not promise.

A reader fits when it accepts every payload that the producer may write. Two shapes are compared from the root downwards:

- A union that is written: each of its options must fit. A union that is read: one of its options must accept all of it.
- Objects: each field that is read must be written where the reader looks for it, and always written if it is required.
- Arrays: item by item, and their lengths. Scalars: kinds and bounds (`bounds`). Enums: value by value.

Only what is in the schemas is compared. In doubt the answer is no: text that happens to hold numbers does not fit a number,
although pydantic might convert it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from outrider.contract.bounds import narrows, takes
from outrider.contract.change import Pairs, step, tagged
from outrider.contract.document import Contract, root
from outrider.contract.schema_shape import AnyShape, Array, Object, Scalar, Shape, Union, Values, opened, options
from outrider.contract.text import words


class MisfitKind(StrEnum):
    MISSING = "missing"
    OPTIONAL = "optional"
    TYPED = "typed"


@dataclass(frozen=True, slots=True)
class Misfit:
    kind: MisfitKind
    path: str
    writes: str | None
    """What the producer writes; None = nothing."""
    reads: str

    def __str__(self) -> str:
        match self.kind:
            case MisfitKind.MISSING:
                return f"{self.path}: is read as {self.reads}, and there is no such field"
            case MisfitKind.OPTIONAL:
                return f"{self.path}: is required, but some events lack it, at least those from before it was added"
            case MisfitKind.TYPED:
                return f"{self.path}: is read as {self.reads}, but published as {self.writes}"


def fits(view: Mapping[str, Any], snapshot: Contract) -> list[Misfit]:
    """Why a class that reads `view` (see `reading`) cannot decode what the snapshot allows; empty = it always can."""
    return _misfits(snapshot.object, root(view), "", frozenset())


def _misfits(written: Shape, read: Shape, path: str, seen: Pairs, tag: str | None = None) -> list[Misfit]:
    """`seen`: the pairs of shapes that are being compared further up; a recursive shape ends there. `tag`: in an option of a
    union, the field that marks the option. It is always written, even if it has a default."""
    a, b = opened(written), opened(read)
    if (id(a), id(b)) in seen:
        return []
    seen |= {(id(a), id(b))}
    if isinstance(b, AnyShape) and not b.rules:
        return []
    wrong = Misfit(MisfitKind.TYPED, path or "the event", words(written), words(read))
    if isinstance(a, Union):
        return _from_union(a, read, path, seen, wrong)
    if isinstance(a, Values):
        return [] if all(_accepts_value(read, text) for text in a.texts) else [wrong]
    match b:
        case Union():
            return _into_union(written, b, path, seen, wrong, tag)
        case Object() if isinstance(a, Object):
            return list(_objects(a, b, path, seen, tag)) if _keys_fit(a, b, seen) else [wrong]
        case Array() if isinstance(a, Array):
            return _arrays(a, b, path, seen, wrong)
        case Scalar() if isinstance(a, Scalar):
            return [] if narrows(a, b) else [wrong]
        case AnyShape() if isinstance(a, AnyShape):
            return [] if a.rules == b.rules else [wrong]
        case _:
            return [wrong]


def _from_union(written: Union, read: Shape, path: str, seen: Pairs, wrong: Misfit) -> list[Misfit]:
    """Every option must fit. If only parts of the options do not fit, these parts are reported, because they say more."""
    found: dict[Misfit, None] = {}
    for option in options(written):
        found |= dict.fromkeys(_misfits(option, read, path, seen, written.tag))
    return [wrong] if any(each.path == wrong.path for each in found) else list(found)


def _into_union(written: Shape, read: Union, path: str, seen: Pairs, wrong: Misfit, tag: str | None) -> list[Misfit]:
    """One option must accept all of it."""
    choices = list(options(read))
    if read.tag is not None and isinstance(a := opened(written), Object):
        mark = a.fields.get(read.tag)
        if mark is None:
            return [Misfit(MisfitKind.MISSING, step(path, read.tag), None, "the field that tells the options apart")]
        if not mark.required and tag != read.tag:
            return [Misfit(MisfitKind.OPTIONAL, step(path, read.tag), words(mark.shape), words(mark.shape))]
        choices = [each for each in choices if tagged(each, read.tag) == tagged(written, read.tag)] or choices
    tried = [(choice, _misfits(written, choice, path, seen, tag)) for choice in choices]
    if not all(found for _, found in tried):
        return []
    # If only one option is of the same kind, its details say more than "does not fit".
    alike = [found for choice, found in tried if type(opened(choice)) is type(opened(written))]
    return alike[0] if len(alike) == 1 and all(each.path != wrong.path for each in alike[0]) else [wrong]


def _objects(written: Object, read: Object, path: str, seen: Pairs, tag: str | None) -> Iterator[Misfit]:
    named = set()
    for name, field in read.fields.items():
        at = step(path, name)
        found = [each for each in (_written_at(written, place) for place in field.places) if each is not None]
        named |= {str(place[0]) for place in field.places}
        if not found:
            if field.required:
                yield Misfit(MisfitKind.MISSING, at, None, words(field.shape))
            continue
        for shape, _ in found:
            yield from _misfits(shape, field.shape, at, seen)
        if field.required and name != tag and not any(always for _, always in found):
            yield Misfit(MisfitKind.OPTIONAL, at, words(found[0][0]), words(field.shape))
    if read.others is not None:
        for name, field in written.fields.items():
            if name not in named:
                yield from _misfits(field.shape, read.others, step(path, name), seen)
        if written.others is not None:
            yield from _misfits(written.others, read.others, step(path, "*"), seen)


def _written_at(written: Shape, place: tuple[str | int, ...]) -> tuple[Shape, bool] | None:
    """What the producer writes at that place, and whether it always does. None if it never does."""
    if not place:
        return written, True
    match opened(written), place[0]:
        case Union() as inside, _:
            found = [_written_at(option, place) for option in options(inside)]
            held = [each for each in found if each is not None]
            if not held:
                return None
            always = len(held) == len(found) and all(each for _, each in held)
            return Union(tuple(shape for shape, _ in held), None), always
        case Object() as inside, str(name):
            field = inside.fields.get(name)
            if field is not None:
                return _deeper(field.shape, field.required, place)
            return None if inside.others is None else _deeper(inside.others, False, place)
        case Array() as inside, int(number):
            if number < 0:
                return AnyShape(), False
            item = _item(inside, number)
            return None if item is None else _deeper(item, inside.least > number, place)
        case ((Scalar() | Object() | Array()), _):
            return None
        case _:
            return AnyShape(), False


def _deeper(shape: Shape, always: bool, place: tuple[str | int, ...]) -> tuple[Shape, bool] | None:
    """`_written_at` for the rest of the place, inside a field or an item that is `always` written."""
    found = _written_at(shape, place[1:])
    return None if found is None else (found[0], found[1] and always)


def _keys_fit(written: Object, read: Object, seen: Pairs) -> bool:
    """Whether the reader accepts the number of fields, and their names if it has rules for names."""
    if not narrows(_size_rules(written), _size_rules(read)):
        return False
    if read.keys is None:
        return True
    if not all(_accepts_value(read.keys, json.dumps(name, ensure_ascii=False)) for name in written.fields):
        return False
    return written.others is None or not _misfits(written.keys or Scalar("string"), read.keys, "", seen)


def _arrays(written: Array, read: Array, path: str, seen: Pairs, wrong: Misfit) -> list[Misfit]:
    if not narrows(_size_rules(written), _size_rules(read)):
        return [wrong]
    found = []
    fixed = max(len(written.prefix), len(read.prefix))
    for place in range(fixed + 1):  # the last one stands for all items after the prefixes
        one, other = _item(written, place), _item(read, place)
        if one is not None and other is not None:
            found += _misfits(one, other, f"{path}[{place if place < fixed else ''}]", seen)
    return found


def _item(array: Array, place: int) -> Shape | None:
    """The shape of that item; None if the array is never that long."""
    if array.most is not None and place >= array.most:
        return None
    return array.prefix[place] if place < len(array.prefix) else array.items


def _size_rules(shape: Array | Object) -> Scalar:
    """The rules for the number of items or fields, to be compared like those of a scalar."""
    return Scalar("items", shape.rules)


def _accepts_value(read: Shape, text: str) -> bool:
    """Whether one value of an enum is accepted."""
    for option in options(read):
        match choice := opened(option):
            case AnyShape() if not choice.rules:
                return True
            case Values() if text in choice.texts:
                return True
            case Scalar() if takes(choice, text):
                return True
            case _:
                continue
    return False
