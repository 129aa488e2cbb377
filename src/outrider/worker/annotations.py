"""Reads the annotations of the parameters of handlers and jobs."""

from __future__ import annotations

import functools
import inspect
import re
import types
import typing
from collections.abc import Callable, Collection, Sequence
from typing import Any

from outrider.errors import DeclarationError
from outrider.event import Declared
from outrider.job import jobs
from outrider.registry import registry


def annotation(function: Callable[..., Any], position: int) -> Any:
    """The evaluated annotation of a parameter; its text if it cannot be evaluated; Any if there is none.

    A name that is imported for type checkers only stands for the event or job class of that name; for Any if there is not
    exactly one.
    """
    called = routine(function)
    try:
        parameter = list(inspect.signature(function).parameters.values())[position]
        given = parameter.annotation
    except Exception:
        return Any
    if given is inspect.Parameter.empty:
        return Any
    # Alone, so that another parameter whose annotation cannot be evaluated does not hide this one.
    scope, names, known = getattr(inspect.unwrap(called), "__globals__", {}), dict[str, Any](), given
    if isinstance(given, str):  # module.Placed is Placed, if the module is unknown
        known = re.sub(r"\b([^\W\d]\w*)(?:\.\w+)*\.(\w+)", lambda name: name[0] if name[1] in scope else name[2], given)
    alone = types.SimpleNamespace(__annotations__={"it": known})
    while True:
        try:
            return typing.get_type_hints(alone, scope, names)["it"]
        except NameError as error:
            if error.name is None or error.name in names:
                return given
            names[error.name] = _known(error.name)
        except Exception:
            return given


def _known(name: str) -> Any:
    found = {model for known in (registry, jobs) for model in known if model.__name__ == name}
    return found.pop() if len(found) == 1 else Any


def routine(function: Callable[..., Any]) -> Callable[..., Any]:
    """What runs when it is called: the function of a functools.partial, the __call__ of an object."""
    if isinstance(function, functools.partial):  # from Python 3.14 on also a routine, for inspect
        return routine(function.func)
    return function if inspect.isroutine(function) else type(function).__call__


def class_of(hint: Any) -> type | None:
    """The class that an annotation requires; None if it is not one class, or a protocol."""
    kind = typing.get_origin(hint) or hint
    clear = isinstance(kind, type) and kind is not Any and not getattr(kind, "_is_protocol", False)
    return kind if clear else None


def takes_batch(function: Callable[..., Any]) -> bool:
    """Its first parameter is annotated as a list: list[OrderPlaced]."""
    hint = annotation(function, 0)
    if isinstance(hint, str):
        return hint.partition("[")[0] in ("list", "Sequence", "collections.abc.Sequence")
    return class_of(hint) in (list, Sequence)


def refuse_unfit(name: str, what: str, hint: Any, models: Collection[type[Declared]], *, batch: bool = False) -> None:
    """Raises DeclarationError if the annotation of the first parameter does not fit what will be passed."""
    whole = hint
    if batch:
        [hint] = typing.get_args(whole) or [Any]
    for model in models:
        if not _fits(hint, model):
            right = " | ".join(each.__name__ for each in models)
            raise DeclarationError(
                f"{name}: declared for {_named(model, hint)}, but its first parameter is annotated as "
                f"{_named(whole, model)}. Annotate it as {f'list[{right}]' if batch else right}, or declare the {what} for "
                "the class that it takes"
            )


def _fits(hint: Any, model: type[Declared]) -> bool:
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return any(_fits(each, model) for each in typing.get_args(hint))
    kind = class_of(hint)
    try:
        return kind is None or issubclass(model, kind)
    except TypeError:  # classes that cannot be asked, such as a TypedDict
        return True


def _named(hint: Any, beside: Any) -> str:
    if not inspect.isclass(hint) or typing.get_origin(hint) is not None:
        return inspect.formatannotation(hint)
    alike = hint.__name__ == getattr(beside, "__name__", None)
    return f"{hint.__module__}.{hint.__qualname__}" if alike else hint.__name__
