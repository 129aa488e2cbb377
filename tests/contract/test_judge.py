"""The whole check without a file: which classes are asked what, and what the verdict says."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date
from typing import Any

import pytest
from pydantic import Field
from tests.contract import making

from outrider import Event
from outrider.contract import (
    Consumer,
    Contract,
    ContractReport,
    EventClass,
    FindingKind,
    Known,
    Snapshot,
    Unreadable,
    judge,
)

TODAY = date(2027, 1, 1)


def event(name: str = "Placed", *, type: str = "contract.judged", version: int = 1, **given: Any) -> type[Event]:  # noqa: A002
    options: dict[str, Any] = {
        key: given.pop(key) for key in ("key", "foreign", "upcasters", "deprecated_after") if key in given
    }
    return making.event(f"{name}{version}", {"type": type, "version": version, **options}, given)


def kept(*models: type[Event], producer: str = "shop") -> dict[tuple[str, int], Snapshot]:
    found = {}
    for model in models:
        contract = Contract.of(model, producer)
        found[contract.type, contract.version] = Snapshot(
            contract, f"contracts/{contract.type}.v{contract.version}.json"
        )
    return found


def known(*models: type[Event], context: str = "shop", **more: Any) -> Known:
    return Known([EventClass(model, context) for model in models], contexts=[context], **more)


def kinds(report: ContractReport) -> list[tuple[int, str]]:
    return [(block.version, finding.kind) for block in report.blocks for finding in block.findings]


def identity(payload: dict[str, Any]) -> dict[str, Any]:
    return payload


# The owner


def test_all_is_well() -> None:
    placed = event(a=int)
    report = judge(known(placed, kept=kept(placed)), TODAY)
    assert not report.fails
    assert str(report) == "1 contract (1 published, 0 views): all hold"


def test_a_missing_snapshot() -> None:
    report = judge(known(event(a=int)), TODAY)
    assert kinds(report) == [(1, FindingKind.NO_SNAPSHOT)]


def test_an_outgrown_snapshot_and_a_broken_one() -> None:
    was = event(a=int)
    grown = judge(known(event(a=int, b=(int, 0)), kept=kept(was)), TODAY)
    assert kinds(grown) == [(1, FindingKind.OUTDATED)]
    broken = judge(known(event(a=str, b=(int, 0)), kept=kept(was)), TODAY)
    assert kinds(broken) == [(1, FindingKind.BREAKING)]
    assert "b: is new and optional, whole number (breaks nobody)" in str(broken)


def test_the_newest_class_reads_the_older_snapshots_or_brings_them_up() -> None:
    one = event(a=int)
    for two, expected in (
        (event(version=2, a=int, b=(int, 0)), []),
        (event(version=2, a=int, b=int), [(2, FindingKind.MISFIT)]),
        (event(version=2, a=int, b=int, upcasters={1: identity}), []),
    ):
        assert kinds(judge(known(one, two, kept=kept(one, two)), TODAY)) == expected
        assert kinds(judge(known(two, kept=kept(one, two)), TODAY)) == expected, "also when the old class is gone"


def test_a_version_that_is_taken_for_the_next_must_fit_it() -> None:
    one, two = event(a=int), event(version=2, a=int, b=int)
    three = event(version=3, c=int, upcasters={2: identity})
    report = judge(known(three, kept=kept(one, two, three)), TODAY)
    assert kinds(report) == [(3, FindingKind.MISFIT)]
    assert "reads version 1 with the upcaster of version 2, which it does not fit" in str(report)
    whole = event(version=3, c=int, upcasters={1: identity, 2: identity})
    assert kinds(judge(known(whole, kept=kept(one, two, whole)), TODAY)) == []
    early = event(version=3, c=int, upcasters={1: identity})
    assert "cannot read every event of version 2" in str(judge(known(early, kept=kept(one, two, early)), TODAY))
    alike = event(version=2, a=int)
    assert kinds(judge(known(three, kept=kept(one, alike, three)), TODAY)) == []


def test_a_hole_between_the_upcasters() -> None:
    """Version 2 is handed to the upcaster from 3 as it is, and what that one gets is known nowhere."""
    one, two = event(a=str), event(version=2, a=int)
    four = event(version=4, a=dict[str, int], upcasters={1: identity, 3: identity})
    report = judge(known(four, kept=kept(one, two, four)), TODAY)
    assert kinds(report) == [(4, FindingKind.HOLE)]
    assert report.fails
    assert "reads version 2 with the upcaster of version 3, of which there is no snapshot" in str(report)
    assert "add an upcaster from 2: upcasters={2: ...}" in str(report)
    whole = event(version=4, a=dict[str, int], upcasters={1: identity, 2: identity, 3: identity})
    assert kinds(judge(known(whole, kept=kept(one, two, whole)), TODAY)) == []
    assert kinds(judge(known(four, kept=kept(one, two, event(version=3, a=int), four)), TODAY)) == []
    never = judge(known(four, kept=kept(one, four)), TODAY)
    assert kinds(never) == [], "what version 1 becomes is a matter of its upcaster"


def test_an_older_class_reads_the_newer_ones_only_when_a_subscription_names_it() -> None:
    one, two = event(a=int), event(version=2, a=str, upcasters={1: identity})
    both = kept(one, two)
    assert kinds(judge(known(one, two, kept=both), TODAY)) == []
    consumer = Consumer("shop.invoice", "shop", (one,))
    assert kinds(judge(known(one, two, kept=both, consumers=[consumer]), TODAY)) == [(1, FindingKind.MISFIT)]


def test_an_owner_that_reads_its_own_must_read_what_it_writes() -> None:
    odd = event(a=(int, Field(serialization_alias="b", validation_alias="c")))
    assert kinds(judge(known(odd, kept=kept(odd)), TODAY)) == []
    report = judge(known(odd, kept=kept(odd), consumers=[Consumer("shop.a", "shop", (odd,))]), TODAY)
    assert kinds(report) == [(1, FindingKind.MISFIT)]
    changed = event(a=str)
    report = judge(known(changed, kept=kept(event(a=int)), consumers=[Consumer("shop.a", "shop", (changed,))]), TODAY)
    assert kinds(report) == [(1, FindingKind.BREAKING)], "the same thing is said once"


# Files


def test_a_snapshot_whose_class_is_gone() -> None:
    one, two, other = event(a=int), event(version=2, a=int), event(type="contract.other")
    report = judge(known(other, kept=kept(one, other)), TODAY)
    assert kinds(report) == [(1, FindingKind.GONE)]
    assert "delete the file when nobody reads contract.judged any more" in str(report)
    past = judge(known(two, kept=kept(one, two)), TODAY)
    assert (past.past, past.fails) == (1, False)
    assert str(past) == "1 contract (1 published, 0 views, 1 past version still read): all hold"
    newer = judge(known(one, kept=kept(one, two)), TODAY)
    assert kinds(newer) == [(2, FindingKind.GONE)]


def test_a_snapshot_that_nobody_here_publishes_or_reads(view: Callable[..., type[Event]]) -> None:
    """It may be a copy, or what is left of an event whose context was renamed in the same change that dropped it."""
    other, copies = event(type="contract.other"), kept(event(a=int), producer="elsewhere")
    report = judge(known(other, kept=kept(other) | copies), TODAY)
    assert kinds(report) == [(1, FindingKind.STRAY)]
    assert not report.fails
    assert "warning: nobody here publishes or reads it" in str(report)
    assert "name the app of elsewhere with --app too" in str(report)
    assert kinds(judge(known(other, view(a=int), kept=kept(other) | copies), TODAY)) == []


def test_a_field_of_a_view_that_nobody_publishes(view: Callable[..., type[Event]]) -> None:
    """With a default it does not fail; it is misspelt, or the producer has renamed it."""
    snapshots = kept(event(customer=str), producer="elsewhere")
    report = judge(known(view(custmer=(str, "")), kept=snapshots), TODAY)
    assert kinds(report) == [(1, FindingKind.UNHEARD)]
    assert not report.fails
    assert "warning: custmer: is in no version that is published, so it always has its default" in str(report)
    assert kinds(judge(known(view(customer=(str, "")), kept=snapshots), TODAY)) == []


def test_a_required_field_that_got_a_default_is_still_promised(view: Callable[..., type[Event]]) -> None:
    was, now = event(customer=str), event(customer=(str, "anonymous"))
    found = known(now, view(customer=str), kept=kept(was))
    assert kinds(judge(found, TODAY)) == []
    refreshed = {("contract.judged", 1): Snapshot(found.current["contract.judged", 1], "refreshed")}
    assert kinds(judge(known(now, view(customer=str), kept=refreshed), TODAY)) == []


def test_an_unreadable_file_is_reported_once() -> None:
    placed = event(a=int)
    wrong = Unreadable("contract.judged", 1, "contracts/contract.judged.v1.json", "it is not JSON", ours=True)
    report = judge(known(placed, unreadable=[wrong]), TODAY)
    assert kinds(report) == [(1, FindingKind.UNREADABLE)]


# Views


@pytest.fixture
def view() -> Callable[..., type[Event]]:
    return lambda **given: event("View", foreign=True, **given)


def test_a_view_without_a_producer(view: Callable[..., type[Event]]) -> None:
    report = judge(known(view(a=int), context="billing"), TODAY)
    assert kinds(report) == [(1, FindingKind.NO_PRODUCER)]
    assert (
        "copy contract.judged.v1.json from the producer's folder into contracts, or name that folder with --against"
        in str(report)
    )


@pytest.mark.parametrize("where", ["kept", "against"])
def test_a_view_against_a_snapshot(view: Callable[..., type[Event]], where: str) -> None:
    snapshots = {where: kept(event(a=int))}
    assert kinds(judge(known(view(a=int), context="billing", **snapshots), TODAY)) == []
    assert kinds(judge(known(view(b=int), context="billing", **snapshots), TODAY)) == [(1, FindingKind.MISFIT)]


def test_a_view_against_a_class_that_has_no_snapshot_yet(view: Callable[..., type[Event]]) -> None:
    assert kinds(judge(known(event(a=int), view(a=int)), TODAY)) == [(1, FindingKind.NO_SNAPSHOT)]


def test_a_view_receives_every_newer_version_as_it_is(view: Callable[..., type[Event]]) -> None:
    snapshots = kept(event(a=int), event(version=2, a=int), event(version=3, a=str))
    report = judge(known(view(a=int), context="billing", against=snapshots), TODAY)
    assert kinds(report) == [(1, FindingKind.MISFIT)]
    assert "publishes as version 3" in str(report)
    assert "read version 3 instead: version=3, with upcasters from the older ones" in str(report)


def test_a_view_and_older_versions(view: Callable[..., type[Event]]) -> None:
    snapshots = kept(event(a=int), event(version=2, a=str))
    without = judge(known(view(version=2, a=str), context="billing", against=snapshots), TODAY)
    assert kinds(without) == [(2, FindingKind.MISFIT)]
    assert "add an upcaster from 1: upcasters={1: ...}" in str(without)
    assert (
        kinds(
            judge(known(view(version=2, a=str, upcasters={1: identity}), context="billing", against=snapshots), TODAY)
        )
        == []
    )


def test_the_folder_to_check_against_counts_more_than_a_copy(view: Callable[..., type[Event]]) -> None:
    old, new = kept(event(a=int)), kept(event(a=int, b=int))
    report = judge(known(view(b=int), context="billing", kept=old, against=new), TODAY)
    assert kinds(report) == [(1, FindingKind.OLD_COPY)]
    assert not report.fails
    assert str(report).endswith("1 contract (0 published, 1 view): all hold, 1 warning")


# The end


@pytest.mark.parametrize(
    ("end", "words", "fails"),
    [
        ("2027-01-31", "warning: is deprecated after 2027-01-31: 30 days left", False),
        ("2027-01-02", "warning: is deprecated after 2027-01-02: 1 day left", False),
        ("2027-01-01", "warning: is deprecated after 2027-01-01: 0 days left", False),
        ("2026-12-31", "  is deprecated after 2026-12-31: that was 1 day ago", True),
        ("2025-12-31", "  is deprecated after 2025-12-31: that was 366 days ago", True),
    ],
)
def test_the_end_of_an_owned_version(end: str, words: str, fails: bool) -> None:
    placed = event(a=int, deprecated_after=end)
    report = judge(known(placed, kept=kept(placed)), TODAY)
    assert report.fails is fails
    assert words in str(report)
    assert "no reader is known here" in str(report)


def test_the_end_names_the_readers(view: Callable[..., type[Event]]) -> None:
    placed = event(a=int, deprecated_after="2027-01-31")
    report = judge(
        known(placed, view(a=int), kept=kept(placed), consumers=[Consumer("shop.a", "shop", (placed,))]), TODAY
    )
    assert kinds(report) == [(1, FindingKind.DEPRECATED), (1, FindingKind.DEPRECATED)]
    assert "known readers: tests.contract.making.View1, shop.a" in str(report)


def test_who_brings_a_version_up_reads_it(view: Callable[..., type[Event]]) -> None:
    one, two = event(a=int, deprecated_after="2027-01-31"), event(version=2, a=int, upcasters={1: identity})
    newer = view(version=2, a=int, upcasters={1: identity})
    named = [Consumer("shop.a", "shop", (two,)), Consumer("billing.b", "billing", (newer,))]
    report = judge(known(one, two, newer, kept=kept(one, two), consumers=named), TODAY)
    assert kinds(report) == [(1, FindingKind.DEPRECATED)]
    assert "known readers: tests.contract.making.View2, shop.a" in str(report)
    without = judge(known(one, two, view(version=2, a=int), kept=kept(one, two)), TODAY)
    assert "no reader is known here" in str(without)


def test_the_end_of_what_a_view_reads(view: Callable[..., type[Event]]) -> None:
    snapshots = kept(event(a=int, deprecated_after="2026-12-24"), event(version=2, a=int))
    report = judge(known(view(a=int), context="billing", against=snapshots), TODAY)
    assert kinds(report) == [(1, FindingKind.EXPIRED)]
    assert "reads version 1, which is deprecated after 2026-12-24: that was 8 days ago" in str(report)
    assert "read version 2 instead, or ask shop for more time" in str(report)
    assert kinds(judge(known(view(version=2, a=int), context="billing", against=snapshots), TODAY)) == []


# As JSON


def test_the_report_as_json() -> None:
    report = judge(known(event(a=str), kept=kept(event(a=int))), TODAY).as_json()
    assert (report["ok"], report["published"], report["views"]) == (False, 1, 0)
    [finding] = report["findings"]
    assert (finding["type"], finding["version"], finding["kind"]) == ("contract.judged", 1, "breaking")
    assert finding["details"] == [
        {
            "kind": "retyped",
            "path": "a",
            "was": "whole number",
            "now": "text",
            "breaks": True,
            "says": "a: was whole number, is text",
        }
    ]
