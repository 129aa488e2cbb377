"""Events that are declared here stay out of the registry of the process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from outrider import Event
from outrider.registry import Registry


@pytest.fixture(scope="module", autouse=True)
def own_registry() -> Iterator[Registry[Event]]:
    with pytest.MonkeyPatch.context() as patch:
        fresh = Registry[Event]()
        patch.setattr("outrider.event.registry", fresh)
        yield fresh
