"""Events that are declared here stay out of the registry of the process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from outrider.registry import Registry


@pytest.fixture(scope="module", autouse=True)
def own_registry() -> Iterator[Registry]:
    with pytest.MonkeyPatch.context() as patch:
        fresh = Registry()
        patch.setattr("outrider.event.registry", fresh)
        yield fresh
