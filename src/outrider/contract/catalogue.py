"""`catalogue`: one Markdown page of all events, for people. The same declarations give the same page."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import date

from outrider.contract.document import Contract, reading, root
from outrider.contract.inputs import EventClass, Known, Snapshot
from outrider.contract.schema_shape import Array, Field, Object, Ref, Shape, Union, opened
from outrider.contract.text import words

HEAD = """# Events

This page is made by `outrider contracts docs`: change the event classes, not the page.
"""
_SPECIAL = re.compile(r"([\\`*_\[\]<>|#~$])")


def catalogue(known: Known) -> str:
    types = sorted({each.spec.type for each in known.declared})
    parts = [HEAD, _overview(types, known)]
    parts += [_event(kind, known) for kind in types]
    if everything := sorted(
        f"- {_subscription(each.name, each.context)}" for each in known.consumers if not each.models
    ):
        parts.append(
            "## Every event\n\nThese subscriptions read events of every type:\n\n" + "\n".join(everything) + "\n"
        )
    return "\n".join(parts)


def _overview(types: list[str], known: Known) -> str:
    rows = ["| event | newest version | published by | read by |", "|---|---|---|---|"]
    for kind in types:
        versions = known.versions(kind)
        newest = str(max(versions)) if versions else "unknown"
        readers = sorted({context for context, *_ in _readers(kind, known)})
        cells = [
            f"[{_text(kind)}](#{_anchor(kind)})",
            newest,
            _producers(versions),
            ", ".join(map(_text, readers)) or "nobody",
        ]
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows) + "\n"


def _event(kind: str, known: Known) -> str:
    versions = known.versions(kind)
    lines = [f"## {_text(kind)}", ""]
    if not versions:
        lines += ["No snapshot of its producer is known here.", ""]
    else:
        newest = versions[max(versions)].contract
        if newest.description:
            lines += [newest.description, ""]
        order = "in no order" if newest.key is None else f"in the order of {_code(newest.key)}"
        lines += [f"Published by {_producers(versions)}, {order}.", ""]
    lines += _read_by(kind, known)
    for version in sorted(versions, reverse=True):
        lines += _version(version, versions[version], known)
    return "\n".join(lines)


def _read_by(kind: str, known: Known) -> list[str]:
    found = _readers(kind, known)
    if not found:
        return ["Read by nobody who is known here.", ""]
    return ["Read by:", "", *(line for *_, line in found), ""]


def _readers(kind: str, known: Known) -> list[tuple[str, str]]:
    """By context; subscriptions with the class that they read, then views that no subscription names."""
    found, named = [], set()
    for consumer in known.consumers:
        for model in consumer.models:
            declared = next(
                (each for each in known.declared if each.model is model), EventClass(model, consumer.context)
            )
            if declared.spec.type == kind:
                named.add(model)
                found.append(
                    (consumer.context, f"- {_subscription(consumer.name, consumer.context)}, as {_reader(declared)}")
                )
    found += [
        (view.context, f"- {_text(view.context)}, as {_reader(view)}, in no subscription")
        for view in known.views
        if view.spec.type == kind and view.model not in named
    ]
    return sorted(found)


def _reader(declared: EventClass) -> str:
    spec = declared.spec
    said = f"{_code(declared.name)} (version {spec.version})"
    if spec.foreign:
        fields = ", ".join(map(_code, root(reading(declared.model)).fields)) or "nothing"
        said = f"{_code(declared.name)} (a view of version {spec.version}: {fields})"
    return said + _upcasters(declared)


def _upcasters(declared: EventClass) -> str:
    steps = [f"{start} ({_code(_called(step))})" for start, step in declared.spec.upcasters.items()]
    return f", with upcasters from {', '.join(steps)}" if steps else ""


def _version(version: int, kept: Snapshot, known: Known) -> list[str]:
    contract = kept.contract
    owner = known.owned.get((contract.type, version))
    past = "" if owner is not None or contract.type not in known.newest else ", no longer published"
    lines = [f"### Version {version}{past}", ""]
    if owner is not None:
        lines += [f"Class {_code(owner.name)}{_upcasters(owner)}.", ""]
    if (end := _end(contract, owner)) is not None:
        lines += [f"**Deprecated after {end}.**", ""]
    live = known.current.get((contract.type, version), contract)
    rows = [_row(path, field) for path, field in fields_of(live.object)]
    if not rows:
        return [*lines, "No fields.", ""]
    return [*lines, "| field | type | required | default | description |", "|---|---|---|---|---|", *rows, ""]


def _end(contract: Contract, owner: EventClass | None) -> date | None:
    return contract.deprecated_after if owner is None else owner.spec.deprecated_after


def fields_of(shape: Object, path: str = "", within: frozenset[str] = frozenset()) -> Iterator[tuple[str, Field]]:
    """Each field with its path, those of the models inside right after it."""
    for name, field in shape.fields.items():
        at = f"{path}.{name}" if path else name
        yield at, field
        yield from _inside(field.shape, at, within)


def _inside(shape: Shape, path: str, within: frozenset[str]) -> Iterator[tuple[str, Field]]:
    name = shape.name if isinstance(shape, Ref) else None
    if name is not None:
        if name in within:
            return
        within |= {name}
    match inside := opened(shape):
        case Object():
            yield from fields_of(inside, path, within)
            if inside.others is not None:
                yield from _inside(inside.others, f"{path}.*", within)
        case Array():
            for place, each in enumerate(inside.prefix):
                yield from _inside(each, f"{path}[{place}]", within)
            yield from _inside(inside.items, f"{path}[]", within)
        case Union():
            held = [each for each in inside.options if isinstance(opened(each), Object | Array | Union)]
            for each in held:
                label = f"({each.name})" if isinstance(each, Ref) and len(held) > 1 else ""
                yield from _inside(each, f"{path}{label}", within)
        case _:
            return


def _row(path: str, field: Field) -> str:
    default = "" if field.default is None else _code(field.default)
    cells = [
        _code(path),
        _text(words(field.shape)),
        "yes" if field.required else "no",
        default,
        _text(field.description or ""),
    ]
    return f"| {' | '.join(cells)} |"


def _producers(versions: dict[int, Snapshot]) -> str:
    found = sorted({kept.contract.producer for kept in versions.values() if kept.contract.producer})
    return ", ".join(f"**{_text(each)}**" for each in found) or "somebody unknown"


def _subscription(name: str, context: str) -> str:
    return f"{_code(name)} of {_text(context)}"


def _called(step: object) -> str:
    return str(getattr(step, "__qualname__", type(step).__name__))


def _anchor(heading: str) -> str:
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def _text(text: str) -> str:
    """Safe in a table cell: on one line, with nothing that Markdown or HTML would take for its own."""
    return _SPECIAL.sub(r"\\\1", " ".join(text.split())).replace("\\<", "&lt;").replace("\\>", "&gt;")


def _code(text: str) -> str:
    """A code span that may hold backticks and bars."""
    text = " ".join(text.split()).replace("|", "\\|")
    ticks = "`" * (1 + max((len(run) for run in re.findall("`+", text)), default=0))
    pad = " " if text.startswith("`") or text.endswith("`") else ""
    return f"{ticks}{pad}{text}{pad}{ticks}"
