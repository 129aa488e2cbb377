"""Declarations with options: frozen dataclasses whose fields state an option's default, its check and its meaning.

batch: int = option(500, whole(1, 10_000))
\"\"\"The most events of one append.\"\"\"
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Self, get_args

from outrider import names
from outrider.errors import DeclarationError
from outrider.retry import option_duration

OptionCheck = Callable[[str, str, Any], Any]
"""(name of the declaration, option, given value) -> the value to keep. Raises DeclarationError."""


def option(default: Any, check: OptionCheck = lambda _whose, _option, value: value) -> Any:
    """A field of a `Declaration` that its users may set."""
    return field(default=default, metadata={"check": check})


@dataclass(frozen=True, kw_only=True)
class Declaration:
    """What an app declares under a name. The options are checked, and converted, when it is made."""

    kind: ClassVar[str]
    """With its article, for errors: "a relay"."""
    name: str

    def __post_init__(self) -> None:
        for each in fields(self):
            if (check := each.metadata.get("check")) is not None:
                object.__setattr__(self, each.name, check(self.name, each.name, getattr(self, each.name)))

    @classmethod
    def options(cls) -> dict[str, Any]:
        """The options and their defaults."""
        return {each.name: each.default for each in fields(cls) if "check" in each.metadata}

    @classmethod
    def declare(cls, given: Mapping[str, Any], **others: Any) -> Self:
        """With the given options; `others` are the fields that are no options."""
        if wrong := names.unknown_option(cls.kind, given, cls.options()):
            raise TypeError(wrong)
        return cls(**others, **given)


def optional(check: OptionCheck) -> OptionCheck:
    """None, or what the check allows."""
    return lambda whose, name, value: None if value is None else check(whose, name, value)


def whole(least: int, most: int) -> OptionCheck:
    def check(whose: str, name: str, value: Any) -> int:
        if type(value) is not int or not least <= value <= most:
            raise DeclarationError(f"{whose}: {name}={value!r:.60} is not a whole number from {least:,} to {most:,}")
        return value

    return check


def one_of(literal: Any) -> OptionCheck:
    """One of the values of a Literal type."""
    allowed = get_args(literal)

    def check(whose: str, name: str, value: Any) -> Any:
        if value not in allowed:
            raise DeclarationError(f"{whose}: {name}={value!r:.60} is none of {', '.join(allowed)}")
        return value

    return check


def seconds(whose: str, name: str, value: Any) -> float:
    """A duration longer than zero, kept as seconds."""
    found = option_duration(name, value, whose).total_seconds()
    if found <= 0:
        raise DeclarationError(f"{whose}: {name}={value!r:.60} is not longer than zero")
    return found


def whole_seconds(least: int, most: int) -> OptionCheck:
    def check(whose: str, name: str, value: Any) -> int:
        found = option_duration(name, value, whose).total_seconds()
        if found != int(found) or not least <= found <= most:
            raise DeclarationError(
                f"{whose}: {name}={value!r:.60} is not a whole number of seconds from {least:,} to {most:,}"
            )
        return int(found)

    return check


def text(most_bytes: int) -> OptionCheck:
    def check(whose: str, name: str, value: Any) -> str:
        if wrong := names.wrong_text(value, most_bytes):
            raise DeclarationError(f"{whose}: {name} {wrong}")
        return str(value)

    return check


def word(whose: str, name: str, value: Any) -> str:
    if wrong := names.wrong_word(value):
        raise DeclarationError(f"{whose}: {name}: {wrong}")
    return str(value)


def a_function(whose: str, name: str, value: Any) -> Any:
    if not callable(value):
        raise DeclarationError(f"{whose}: {name}={value!r:.60} cannot be called: pass a function")
    return value


def policy(whose: str, name: str, value: Any) -> Any:
    """A retry policy: anything with `delay`."""
    if not callable(getattr(value, "delay", None)):
        raise DeclarationError(
            f"{whose}: {name}={value!r:.60} is not a policy: pass RetryPolicy(retries=...) or Backoff.table(...)"
        )
    return value
