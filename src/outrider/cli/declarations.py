"""What the named apps declare: which context publishes an event, which subscriptions read it, and the snapshots."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from outrider.app import Outrider
from outrider.cli import snapshots
from outrider.cli.find import find_app
from outrider.contract import Consumer, EventClass, Known, Snapshot
from outrider.errors import ConfigError
from outrider.event import Event, spec_of
from outrider.registry import registry


def load(names: Sequence[str] | None, folder: Path, against: Iterable[Path] = ()) -> Known:
    apps: list[tuple[Outrider, str]] = []
    first: dict[type[Event], str] = {}
    for name in names or (None,):
        before = set(registry)
        app = find_app(name)
        if app is None:
            raise ConfigError(
                "no app: name it with --app module:app, OUTRIDER_APP, or app under [tool.outrider] in pyproject.toml"
            )
        apps.append((app, _module(app) if name is None else name.partition(":")[0]))
        first |= {model: app.settings.context for model in registry if model not in before}
    found, others = snapshots.read_all(folder, ours=True), snapshots.read_others(against)
    consumers = {
        each.name: Consumer(each.name, each.context, each.events) for app, _ in apps for each in app.subscriptions
    }
    return Known(
        [
            EventClass(model, _producer(model, apps, found.kept) or context)
            for model, context in first.items()
            if not _within(model.__module__, "outrider")
        ],
        sorted(consumers.values(), key=lambda each: each.name),
        found.kept,
        others.kept,
        [*found.unreadable, *others.unreadable],
        str(folder),
        {app.settings.context for app, _ in apps},
    )


def _producer(
    model: type[Event], apps: Sequence[tuple[Outrider, str]], kept: Mapping[tuple[str, int], Snapshot]
) -> str | None:
    """The app that has the class in its own module, else the context in its snapshot, else the nearest package.

    Which apps are loaded must not change the answer. A package may contain other apps, so it counts less than a snapshot.
    """
    own = {app.settings.context for app, module in apps if module == model.__module__}
    if len(own) == 1:
        return own.pop()
    spec = spec_of(model)
    known = None if spec.foreign else kept.get((spec.type, spec.version))
    return _nearest(model, apps) if known is None else known.contract.producer


def _nearest(model: type[Event], apps: Iterable[tuple[Outrider, str]]) -> str | None:
    """None when no app has the class in its package, or several are equally near."""
    near: dict[int, set[str]] = {}
    for app, module in apps:
        if (package := _package(module)) and _within(model.__module__, package):
            near.setdefault(len(package), set()).add(app.settings.context)
    found = near[max(near)] if near else set()
    return found.pop() if len(found) == 1 else None


def _package(module: str) -> str:
    """The package of the module `shop.web.app` is `shop.web`."""
    is_package = hasattr(sys.modules.get(module), "__path__")
    return module if is_package else module.rpartition(".")[0]


def _within(module: str, package: str) -> bool:
    return f"{module}.".startswith(f"{package}.")


def _module(app: Outrider) -> str:
    """The module of an app that the environment or pyproject.toml names."""
    return next((name for name, module in list(sys.modules.items()) if _holds(module, app)), "")


def _holds(module: object, app: Outrider) -> bool:
    """Compares by identity: comparing by value fails for some objects, like Django's settings before they are configured."""
    return any(value is app for value in getattr(module, "__dict__", {}).values())
