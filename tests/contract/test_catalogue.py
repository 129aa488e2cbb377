"""The page of all events: what it says, that it is stable, and that no text can break its tables."""

from __future__ import annotations

import re
from typing import Any

from pydantic import BaseModel, Field

from outrider import Event
from outrider.contract import Consumer, Contract, EventClass, Known, Snapshot, catalogue


class Node(BaseModel):
    label: str = Field(description="a | b\n\n`c` <script> *d* [e](f)")
    children: list[Node] = []


def one_to_two(payload: dict[str, Any]) -> dict[str, Any]:
    return payload


def page() -> str:
    class Placed1(Event, type="contract.shown", deprecated_after="2027-01-31"):
        tree: Node

    class Placed2(Event, type="contract.shown", version=2, key="odd", upcasters={1: one_to_two}):
        """Something was placed.

        In two paragraphs.
        """

        tree: Node = Field(alias="a`b")
        note: str | None = None
        odd: str = Field(alias="odd|name")

    class View(Event, type="contract.shown", foreign=True):
        tree: Node | None = None

    class Elsewhere(Event, type="contract.elsewhere", foreign=True):
        total: int

    class Unknown(Event, type="contract.unknown", foreign=True):
        pass

    class Empty(Event, type="contract.empty"):
        pass

    class Producer(Event, type="contract.elsewhere"):
        """Published far away."""

        total: int

    past = Contract.of(Placed1, "shop")
    lent = Contract.of(Producer, "far")
    known = Known(
        declared=[
            EventClass(Placed2, "shop"),
            EventClass(Empty, "shop"),
            *(EventClass(each, "billing") for each in (View, Elsewhere, Unknown)),
        ],
        consumers=[
            Consumer("shop.index", "shop", (Placed2,)),
            Consumer("billing.invoice", "billing", (View, Elsewhere)),
            Consumer("shop.audit", "shop", ()),
        ],
        kept={("contract.shown", 1): Snapshot(past, "contracts/contract.shown.v1.json")},
        against={("contract.elsewhere", 1): Snapshot(lent, "far/contract.elsewhere.v1.json")},
    )
    return catalogue(known)


PAGE = r"""# Events

This page is made by `outrider contracts docs`: change the event classes, not the page.

| event | newest version | published by | read by |
|---|---|---|---|
| [contract.elsewhere](#contractelsewhere) | 1 | **far** | billing |
| [contract.empty](#contractempty) | 1 | **shop** | nobody |
| [contract.shown](#contractshown) | 2 | **shop** | billing, shop |
| [contract.unknown](#contractunknown) | unknown | somebody unknown | billing |

## contract.elsewhere

Published far away.

Published by **far**, in no order.

Read by:

- `billing.invoice` of billing, as `MODULE.page.<locals>.Elsewhere` (a view of version 1: `total`)

### Version 1

| field | type | required | default | description |
|---|---|---|---|---|
| `total` | whole number | yes |  |  |

## contract.empty

Published by **shop**, in no order.

Read by nobody who is known here.

### Version 1

Class `MODULE.page.<locals>.Empty`.

No fields.

## contract.shown

Something was placed.

In two paragraphs.

Published by **shop**, in the order of `odd\|name`.

Read by:

- `billing.invoice` of billing, as `MODULE.page.<locals>.View` (a view of version 1: `tree`)
- `shop.index` of shop, as `MODULE.page.<locals>.Placed2` (version 2), with upcasters from 1 (`one_to_two`)

### Version 2

Class `MODULE.page.<locals>.Placed2`, with upcasters from 1 (`one_to_two`).

| field | type | required | default | description |
|---|---|---|---|---|
| ``a`b`` | Node | yes |  |  |
| ``a`b.label`` | text | yes |  | a \| b \`c\` &lt;script&gt; \*d\* \[e\](f) |
| ``a`b.children`` | list of Node | no | `[]` |  |
| `note` | text or null | no | `null` |  |
| `odd\|name` | text | yes |  |  |

### Version 1, no longer published

**Deprecated after 2027-01-31.**

| field | type | required | default | description |
|---|---|---|---|---|
| `tree` | Node | yes |  |  |
| `tree.label` | text | yes |  | a \| b \`c\` &lt;script&gt; \*d\* \[e\](f) |
| `tree.children` | list of Node | no | `[]` |  |

## contract.unknown

No snapshot of its producer is known here.

Read by:

- billing, as `MODULE.page.<locals>.Unknown` (a view of version 1: nothing), in no subscription

## Every event

These subscriptions read events of every type:

- `shop.audit` of shop
""".replace("MODULE", __name__)


def test_the_page() -> None:
    assert page() == PAGE


def test_the_page_is_stable() -> None:
    assert page() == page()


def test_every_row_has_as_many_cells_as_its_table() -> None:
    for table in re.findall(r"(?:^\|.*\n)+", page(), re.MULTILINE):
        assert len({len(re.findall(r"(?<!\\)\|", row)) for row in table.splitlines()}) == 1, table
