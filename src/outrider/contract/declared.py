"""What apps declare: which context publishes an event, which subscriptions read it, and the snapshots."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from outrider.contract import snapshots
from outrider.contract.inputs import Consumer, EventClass, Known, Snapshot
from outrider.event import Event, spec_of


@dataclass(frozen=True, slots=True)
class DeclaringApp:
    context: str
    module: str
    """The module that holds the app."""
    consumers: Sequence[Consumer]


def known_of(
    apps: Sequence[DeclaringApp], first: Mapping[type[Event], str], folder: Path, against: Iterable[Path] = ()
) -> Known:
    """`first`: the event classes, each with the context of the app that imported it first."""
    found, others = snapshots.read_all(folder, ours=True), snapshots.read_others(against)
    consumers = {each.name: each for app in apps for each in app.consumers}
    read = {model for each in consumers.values() for model in each.models}
    return Known(
        [
            EventClass(model, _producer(model, apps, found.kept) or context)
            for model, context in first.items()
            if model in read or not _within(model.__module__, "outrider")
        ],
        sorted(consumers.values(), key=lambda each: each.name),
        found.kept,
        others.kept,
        [*found.unreadable, *others.unreadable],
        str(folder),
        {app.context for app in apps},
    )


def module_of(app: object) -> str:
    """The module that holds an app; empty if none does."""
    return next((name for name, module in list(sys.modules.items()) if _holds(module, app)), "")


def _producer(model: type[Event], apps: Sequence[DeclaringApp], kept: Mapping[tuple[str, int], Snapshot]) -> str | None:
    """The app that has the class in its own module, else the context in its snapshot, else the nearest package.

    Which apps are loaded must not change the answer. A package may contain other apps, so it counts less than a snapshot.
    """
    own = {app.context for app in apps if app.module == model.__module__}
    if len(own) == 1:
        return own.pop()
    spec = spec_of(model)
    known = None if spec.foreign else kept.get((spec.type, spec.version))
    return _nearest(model, apps) if known is None else known.contract.producer


def _nearest(model: type[Event], apps: Iterable[DeclaringApp]) -> str | None:
    """None when no app has the class in its package, or several are equally near."""
    near: dict[int, set[str]] = {}
    for app in apps:
        if (package := _package(app.module)) and _within(model.__module__, package):
            near.setdefault(len(package), set()).add(app.context)
    found = near[max(near)] if near else set()
    return found.pop() if len(found) == 1 else None


def _package(module: str) -> str:
    """The package of the module `shop.web.app` is `shop.web`."""
    is_package = hasattr(sys.modules.get(module), "__path__")
    return module if is_package else module.rpartition(".")[0]


def _within(module: str, package: str) -> bool:
    return f"{module}.".startswith(f"{package}.")


def _holds(module: object, app: object) -> bool:
    """Compares by identity: comparing by value fails for some objects, like Django's settings before they are configured."""
    return any(value is app for value in getattr(module, "__dict__", {}).values())
