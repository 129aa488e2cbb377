"""Options that several commands share are declared once, as the fields of an `OptionGroup`.

A command takes a parameter of that type; `Commands` turns its fields into options and hands the filled object over.
`confirm` asks before a command changes something for good.
"""

from __future__ import annotations

import getpass
import inspect
import os
import sys
from collections.abc import Callable
from copy import copy
from dataclasses import MISSING, dataclass, fields
from functools import wraps
from typing import Annotated, Any, ClassVar, Self, get_type_hints

import typer
from typer.core import TyperArgument, TyperCommand, TyperGroup

from outrider.cli.output.text import one_line
from outrider.errors import NotConfirmed
from outrider.signed import Signed

YesOption = Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Show what would be done, and change nothing.")]
LimitOption = Annotated[int, typer.Option("--limit", metavar="N", min=1, help="Show at most this many.")]


class OptionGroup:
    """The base of frozen dataclasses whose fields are options: `name: Annotated[type, typer.Option(...)] = default`."""

    panel: ClassVar[str | None] = None
    """The heading of these options in the help."""
    comes_last: ClassVar[bool] = False
    """Shown below the options of other groups."""

    def within(self, ctx: typer.Context) -> Self:  # noqa: ARG002
        """The group with the options that were given before the subcommand, if it looks for them."""
        return self


class CliCommand(TyperCommand):
    def get_params(self, ctx: Any) -> list[Any]:
        return _without_types(super().get_params(ctx))


class CliGroup(TyperGroup):
    def get_params(self, ctx: Any) -> list[Any]:
        return _without_types(super().get_params(ctx))


class Commands(typer.Typer):
    """A command, or a group of commands, that may take option groups."""

    def __init__(self, *, cls: type[CliGroup] = CliGroup, **settings: Any) -> None:
        super().__init__(cls=cls, add_completion=False, **settings)

    def command(self, name: str | None = None, **settings: Any) -> Callable[[Any], Any]:
        register = super().command(name, cls=CliCommand, **settings)
        return lambda function: register(_expanded(function))

    def callback(self, **settings: Any) -> Callable[[Any], Any]:
        """Unlike typer's, the function is not called when a subcommand follows."""
        register = super().callback(**settings)
        return lambda function: register(_expanded(function))


def _without_types(params: list[Any]) -> list[Any]:
    """Typer writes `<bool>` behind a flag, and `<str>` behind an argument."""
    for each in params:
        if isinstance(each, TyperArgument):
            each.display_type_rich = lambda ctx: None  # type: ignore[method-assign]  # noqa: ARG005
        elif getattr(each, "is_flag", False):
            each.metavar = ""
    return params


def _expanded(function: Callable[..., None]) -> Callable[..., None]:
    hints = get_type_hints(function, include_extras=True)
    own = inspect.signature(function).parameters
    groups = {name: hints[name] for name in own if _is_group(hints[name])}
    found = {"ctx": _parameter("ctx", typer.Context)}
    found |= {name: _parameter(name, hints[name], each.default) for name, each in own.items() if name not in groups}
    for group in sorted(groups.values(), key=lambda each: each.comes_last):
        found |= _options(group)

    @wraps(function)
    def call(ctx: typer.Context, **given: Any) -> None:
        for name, group in groups.items():
            given[name] = group(**{each.name: given.pop(each.name) for each in fields(group)}).within(ctx)
        if ctx.invoked_subcommand is None:
            function(**given)

    call.__doc__ = _flowing(function.__doc__ or "")
    call.__signature__ = inspect.Signature(list(found.values()))  # type: ignore[attr-defined]
    call.__annotations__ = {name: each.annotation for name, each in found.items()}
    return call


def _flowing(text: str) -> str:
    """Joins the lines of each paragraph, so that the terminal's width decides; indented lines stay as they are."""
    paragraphs = inspect.cleandoc(text).split("\n\n")
    return "\n\n".join(each if each.startswith(" ") else each.replace("\n", " ") for each in paragraphs)


def _is_group(hint: object) -> bool:
    return isinstance(hint, type) and issubclass(hint, OptionGroup)


def _options(group: type[Any]) -> dict[str, inspect.Parameter]:
    hints = get_type_hints(group, include_extras=True)
    return {
        each.name: _parameter(each.name, _in_panel(hints[each.name], group.panel), each.default)
        for each in fields(group)
    }


def _in_panel(hint: Any, panel: str | None) -> Any:
    option = copy(hint.__metadata__[0])
    option.rich_help_panel = panel
    return Annotated[hint.__origin__, option]


def _parameter(name: str, hint: Any, default: Any = MISSING) -> inspect.Parameter:
    default = inspect.Parameter.empty if default is MISSING else default
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=hint, default=default)


@dataclass(frozen=True)
class AuditOptions(OptionGroup):
    panel = "For the audit"

    reason: Annotated[str | None, typer.Option("--reason", metavar="TEXT", help="Why you do it.")] = None
    by: Annotated[str | None, typer.Option("--by", metavar="NAME", help="Who you are. Default: your login name.")] = (
        None
    )

    @property
    def who(self) -> str:
        return who(self.by)

    @property
    def signed(self) -> Signed:
        return Signed(self.who, self.reason)


def who(by: str | None) -> str:
    try:
        return by or getpass.getuser()
    except (KeyError, OSError, ImportError):
        return f"uid {os.getuid()}"


def confirm(question: str, otherwise: str, *, yes: bool) -> None:
    """`otherwise` says what was not done, like "nothing was replayed"."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise NotConfirmed(f"{otherwise}: there is no terminal to ask at; to do it, add --yes ({one_line(question)})")
    if not typer.confirm(one_line(question), err=True):
        raise NotConfirmed(otherwise)
