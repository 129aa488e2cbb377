"""`promised`: the contract of a class, with what its snapshot has promised and the class cannot know by itself.

A field with a default is always written, but the class does not tell whether it was there from the beginning. The
snapshot does: what was in every event, and still is written, stays required.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace

from outrider.contract.change import Pairs, compare, paired
from outrider.contract.document import Contract
from outrider.contract.schema_shape import Array, Object, Shape, Union, opened


def promised(snapshot: Contract, current: Contract) -> Contract:
    """What a new snapshot would say. After a breaking change, that is the class alone."""
    if any(change.breaks for change in compare(snapshot, current)):
        return current
    made = replace(current, schema=json.loads(json.dumps(current.schema)))
    always: dict[int, tuple[Object, set[str]]] = {}
    for was, now in _objects(snapshot.object, made.object, frozenset()):
        names = {name for name, field in was.fields.items() if field.required and name in now.fields}
        # A model may stand at several places: then it must have been required at all of them.
        always[id(now)] = (now, names & always[id(now)][1] if id(now) in always else names)
    for now, names in always.values():
        if required := sorted({*now.source.get("required", ()), *names}):
            now.source["required"] = required
    return Contract(made.schema)


def _objects(was: Shape, now: Shape, seen: Pairs) -> Iterator[tuple[Object, Object]]:
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
        yield from _objects(one, other, seen)
