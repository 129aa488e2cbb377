"""The annotation of a handler's first parameter and what it is declared for must agree."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Optional, Protocol, TypeVar, Union

import pytest
from pydantic import BaseModel
from tests.worker.jobs.factory import Make, Paint
from tests.worker.shop import Cancelled, Placed

from outrider import Event, HandlerContext, JobContext, Outrider, SyncHandlerContext
from outrider.errors import DeclarationError
from outrider.integrations.django import orm


class Customer(Protocol):
    customer: str


E = TypeVar("E", bound=Event)


async def other(event: Cancelled, ctx: HandlerContext) -> None: ...
async def alone(event: Cancelled) -> None: ...
async def batch(events: list[Cancelled], ctx: HandlerContext) -> None: ...
async def sequence(events: Sequence[Cancelled]) -> None: ...
async def nothing_else(event: Optional[Cancelled]) -> None: ...  # noqa: UP045
async def plain_dict(event: dict[str, Any]) -> None: ...
async def evaluated(event: Any) -> None: ...
def blocking(event: Cancelled, ctx: SyncHandlerContext) -> None: ...
@orm
def with_django(event: Cancelled) -> None: ...
async def context_unknown(event: Cancelled, ctx: Unknown) -> None: ...  # type: ignore[name-defined]  # noqa: F821


evaluated.__annotations__["event"] = Cancelled


class Noting:
    async def __call__(self, event: Cancelled, ctx: HandlerContext) -> None: ...

    async def method(self, event: Cancelled) -> None: ...


class Made:
    def __init__(self, tx: Any) -> None: ...

    async def __call__(self, event: Cancelled) -> None: ...


class OnlyForCheckers(Event, type="annotations.only_for_checkers"):
    pass


KNOWN_BY_NAME = OnlyForCheckers
del OnlyForCheckers  # as if it were imported under TYPE_CHECKING: its name cannot be evaluated here


async def unevaluated(event: "OnlyForCheckers") -> None: ...  # noqa: F821, UP037
async def unevaluated_batch(events: "list[OnlyForCheckers]") -> None: ...  # noqa: F821, UP037
async def unevaluated_union(event: "OnlyForCheckers | Cancelled") -> None: ...  # noqa: F821, UP037
async def unevaluated_module(event: "checkers.OnlyForCheckers") -> None: ...  # type: ignore[name-defined]  # noqa: F821, UP037


@pytest.mark.parametrize("function", [unevaluated, unevaluated_batch, unevaluated_union, unevaluated_module])
def test_the_name_of_another_event_is_refused_also_if_it_cannot_be_evaluated(function: Callable[..., Any]) -> None:
    app = Outrider(context="shop")
    with pytest.raises(
        DeclarationError, match=r"declared for Placed, but its first parameter is annotated as .*OnlyForC"
    ):
        app.handler(Placed, name="shop.note")(function)
    if function is not unevaluated_batch:
        with pytest.raises(DeclarationError, match="declared for Placed, but its first parameter is annotated as "):
            app.job(on=Placed, name="shop.note")(function)
    app.handler(KNOWN_BY_NAME, name="shop.note")(function)


def test_a_name_that_several_events_have_is_accepted() -> None:
    async def note(event: Any) -> None: ...

    note.__annotations__["event"] = "OfTheSameName"
    for source in ("one", "two"):
        type("OfTheSameName", (Event,), {"__module__": source}, type=f"annotations.{source}", foreign=True)
    Outrider(context="shop").handler(Placed, name="shop.note")(note)


NO_CONTEXT: Any = None
MISTAKEN: list[Callable[..., Any]] = [
    other, alone, batch, sequence, nothing_else, plain_dict, evaluated, blocking, with_django, context_unknown,
    Noting(), Noting().method, functools.partial(other, ctx=NO_CONTEXT),
]  # fmt: skip


@pytest.mark.parametrize("function", MISTAKEN, ids=lambda each: getattr(each, "__name__", type(each).__name__))
def test_a_handler_of_one_event_that_takes_another_is_refused(function: Callable[..., Any]) -> None:
    with pytest.raises(DeclarationError) as refused:
        Outrider(context="shop").handler(Placed, name="shop.note")(function)
    text = str(refused.value)
    assert text.startswith("shop.note: declared for Placed, but its first parameter is annotated as ")
    assert ("dict[str" if function is plain_dict else "Cancelled") in text
    assert "Annotate it as" in text
    assert "or declare the handler for" in text


def test_a_factory_of_handlers_that_take_another_event_is_refused() -> None:
    with pytest.raises(
        DeclarationError, match="declared for Placed, but its first parameter is annotated as Cancelled"
    ):
        Outrider(context="shop").subscribe(Placed, Made, name="shop.note")
    Outrider(context="shop").subscribe(Cancelled, Made, name="shop.note")


def test_a_job_that_takes_another_job_is_refused() -> None:
    async def paint(job: Paint, ctx: JobContext) -> None: ...

    with pytest.raises(DeclarationError, match="declared for Make, but its first parameter is annotated as Paint"):
        Outrider(context="shop").job(Make)(paint)
    Outrider(context="shop").job(Paint)(paint)


@pytest.mark.parametrize("function", [other, batch, blocking])
def test_a_job_of_one_event_that_takes_another_is_refused(function: Callable[..., Any]) -> None:
    function = alone if function is other else function
    with pytest.raises(DeclarationError, match="declared for Placed, but its first parameter is annotated as"):
        Outrider(context="shop").job(on=Placed, name="shop.note")(function)


async def one_of_two(event: Placed) -> None: ...
async def batch_of_one_of_two(events: list[Placed]) -> None: ...


@pytest.mark.parametrize("function", [one_of_two, batch_of_one_of_two])
def test_a_handler_of_two_events_that_takes_one_of_them_is_refused(function: Callable[..., Any]) -> None:
    with pytest.raises(DeclarationError) as refused:
        Outrider(context="shop").handler(Placed, Cancelled, name="shop.note")(function)
    assert "declared for Cancelled, but" in str(refused.value)
    assert "Annotate it as Placed | Cancelled" in str(refused.value) or "list[Placed | Cancelled]" in str(refused.value)


def test_classes_of_the_same_name_are_told_apart() -> None:
    async def note(event: Any) -> None: ...

    def view(module: str) -> type[Event]:
        class Placed(Event, type="annotations.placed", foreign=True):
            pass

        Placed.__module__, Placed.__qualname__ = module, "Placed"
        return Placed

    theirs, mine = view("billing.views"), view("mail.views")
    note.__annotations__["event"] = theirs
    with pytest.raises(DeclarationError, match=r"mail\.views\.Placed.*billing\.views\.Placed"):
        Outrider(context="shop").handler(mine, name="shop.note")(note)


async def exact(event: Placed, ctx: HandlerContext) -> None: ...
async def base(event: Event, ctx: Any) -> None: ...
async def model(event: BaseModel) -> None: ...
async def anything(event: Any) -> None: ...
async def an_object(event: object) -> None: ...
async def union(event: Placed | Cancelled) -> None: ...
async def old_union(event: Union[Placed, Cancelled]) -> None: ...  # noqa: UP007
async def annotated(event: Annotated[Placed, "the event"]) -> None: ...
async def protocol(event: Customer) -> None: ...
async def variable(event: E) -> None: ...
async def bare_list(events: list) -> None: ...  # type: ignore[type-arg]
async def of_base(events: list[Event]) -> None: ...
async def unknown(event: Unknown) -> None: ...  # type: ignore[name-defined]  # noqa: F821
async def bare(event, ctx): ...  # type: ignore[no-untyped-def]
async def rest(*args: Any) -> None: ...


FITTING: list[Callable[..., Any]] = [
    exact, base, model, anything, an_object, union, old_union, annotated, protocol, variable, bare_list, of_base, unknown,
    bare, rest, lambda _: None,
]  # fmt: skip


@pytest.mark.parametrize("function", FITTING, ids=lambda each: each.__name__)
def test_what_fits_or_cannot_be_known_is_declared(function: Callable[..., Any]) -> None:
    Outrider(context="shop").handler(Placed, name="shop.note")(function)


@pytest.mark.parametrize(
    "function", [base, model, union, old_union, of_base, unknown, bare], ids=lambda each: each.__name__
)
def test_a_handler_of_several_events_may_take_a_union_or_a_base(function: Callable[..., Any]) -> None:
    Outrider(context="shop").handler(Placed, Cancelled, name="shop.note")(function)


@pytest.mark.parametrize("function", [model, union, anything, unknown], ids=lambda each: each.__name__)
def test_a_job_of_several_events_may_take_a_union_or_a_base(function: Callable[..., Any]) -> None:
    Outrider(context="shop").job(on=[Placed, Cancelled], name="shop.note")(function)
