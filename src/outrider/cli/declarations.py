"""What the named apps declare: which context publishes an event, which subscriptions read it, and the snapshots."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from outrider.cli.target import need_app
from outrider.contract import Consumer, Known
from outrider.contract.declared import DeclaringApp, known_of, module_of
from outrider.event import Event
from outrider.registry import registry


def load(names: Sequence[str] | None, folder: Path, against: Iterable[Path] = ()) -> Known:
    apps: list[DeclaringApp] = []
    first: dict[type[Event], str] = {}
    for name in names or (None,):
        before = set(registry)
        app = need_app(name)
        context = app.settings.context
        consumers = [Consumer(each.name, each.context, each.events) for each in app.subscriptions]
        apps.append(DeclaringApp(context, module_of(app) if name is None else name.partition(":")[0], consumers))
        first |= {model: context for model in registry if model not in before}
    return known_of(apps, first, folder, against)
