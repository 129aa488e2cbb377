"""What a subscription may say, and what it tells the database."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from outrider.errors import DeclarationError
from outrider.subscription import Subscription
from outrider.testing.cases import Anything, Placed, PlacedElsewhere, Unregistered


def subscription(**changes: Any) -> Subscription:
    values: dict[str, Any] = {"name": "shop.reader", "kind": "reader", "context": "shop", "events": ()}
    return Subscription(**(values | changes))


@pytest.mark.parametrize("partitions", [1, 2, 4, 512, 1024])
def test_partitions_are_powers_of_two(partitions: int) -> None:
    assert subscription(partitions=partitions).partitions == partitions


@pytest.mark.parametrize("partitions", [0, -1, -2, 3, 6, 1023, 2048])
def test_other_partitions_are_refused(partitions: int) -> None:
    wanted = f"shop.reader: partitions={partitions} is not a power of two up to 1024"
    with pytest.raises(DeclarationError, match=wanted):
        subscription(partitions=partitions)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": "Shop reader"}, "the subscription name 'Shop reader' is not lower-case words joined by dots"),
        ({"name": ""}, "the subscription name '' is not"),
        ({"name": "a" * 64}, "the subscription name has 64 bytes, at most 63"),
        ({"start": "yesterday"}, "shop.reader: start='yesterday' is neither 'now', 'beginning' nor a datetime"),
        ({"start": datetime(2024, 1, 1)}, "shop.reader: start is a naive datetime: give it a time zone"),  # noqa: DTZ001
    ],
)
def test_what_cannot_work_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(DeclarationError, match=message):
        subscription(**changes)


def test_event_types_are_sorted_and_without_repetition() -> None:
    wanted = ["elsewhere.placed", "exercise.anything", "exercise.placed"]
    assert subscription(events=(Placed, PlacedElsewhere, Anything, Placed)).event_types == wanted


def test_no_events_means_every_type() -> None:
    assert subscription().event_types is None


def test_an_event_without_a_type_is_refused() -> None:
    with pytest.raises(DeclarationError, match="Unregistered has no event type"):
        assert subscription(events=(Unregistered,)).event_types


def test_where_it_starts() -> None:
    at = datetime(2024, 1, 1, 12, tzinfo=UTC)
    assert [subscription(start=start).start_text for start in ("now", "beginning", at)] == [
        "now",
        "beginning",
        "2024-01-01T12:00:00+00:00",
    ]
