"""The pages of the reference, made from the code: none of them can be out of date."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import typer
from typer.main import get_command

import outrider
from outrider.cli.main import COMMANDS, cli
from outrider.config import Settings
from outrider.observe.vocabulary import METRICS

SQL = Path(outrider.__file__).parent / "postgres" / "sql"
PUBLIC_SQL = ("publish", "enqueue", "pause", "resume", "replay", "discard", "withdraw")
_ATTRIBUTE = re.compile(r'^    (\w+): .*?(?:= (.*?))?\n    """(.*?)"""', re.MULTILINE | re.DOTALL)


MODULES = {
    "options": "What the declarations of handlers, jobs, relays, inboxes and rollups can be given.",
    "signals": "What a process tells about its work: `app.signals.subscribe(...)`.",
    "errors": "Every exception that Outrider raises.",
    "testing": "Helpers for the tests of an application.",
}


def pages() -> Iterator[tuple[str, str]]:
    yield "reference/api.md", _api()
    for name, about in MODULES.items():
        yield f"reference/{name}.md", _module(name, about)
    yield "reference/cli.md", _command_line()
    yield "reference/settings.md", _settings()
    yield "reference/metrics.md", _metrics()
    yield "reference/sql.md", _sql()


def _api() -> str:
    names = "\n\n".join(f"::: outrider.{name}" for name in outrider.__all__)
    return f"# API\n\nThe names that `import outrider` gives.\n\n{names}\n"


def _module(name: str, about: str) -> str:
    options = "    options:\n      show_root_heading: false\n      show_root_toc_entry: false"
    return f"# {name.capitalize()}\n\n{about}\n\n::: outrider.{name}\n{options}\n"


def _command_line() -> str:
    parts = ["# Command line\n"]
    top: Any = get_command(cli)
    context = typer.Context(top, info_name="outrider")
    for panel, sentences in COMMANDS.items():
        parts.append(f"\n## {panel}\n")
        for name in sentences:
            parts += _command(top.get_command(context, name), f"outrider {name}", 3)
    return "\n".join(parts)


def _command(command: Any, path: str, level: int) -> Iterator[str]:
    yield f"{'#' * level} `{path}`\n"
    yield _plain(command.help) + "\n"
    rows = [row for each in command.params if (row := _parameter(each)) is not None]
    if rows and not hasattr(command, "commands"):
        yield "| | |\n|---|---|\n" + "\n".join(rows) + "\n"
    for name, inner in sorted(getattr(command, "commands", {}).items()):
        yield from _command(inner, f"{path} {name}", level + 1)


def _parameter(parameter: Any) -> str | None:
    if getattr(parameter, "hidden", False) or parameter.name == "help":
        return None
    names = ", ".join(f"`{each}`" for each in (*parameter.opts, *parameter.secondary_opts))
    if parameter.param_type_name == "argument":
        names = f"`{(parameter.metavar or parameter.name).upper()}`"
    return f"| {names} | {_cell(_plain(getattr(parameter, 'help', None)))} |"


def _settings() -> str:
    source = Path(outrider.__file__).with_name("config.py").read_text()
    said = {name: " ".join(text.split()) for name, _, text in _ATTRIBUTE.findall(source)}
    rows = [f"| `{each.name}` | {_cell(said[each.name])} |" for each in fields(Settings)]
    about = (
        "Arguments of `Outrider(...)`. Each comes from its argument, else from the environment, else from its default."
    )
    return f"# Settings\n\n{about}\n\n| setting | meaning |\n|---|---|\n" + "\n".join(rows) + "\n"


def _metrics() -> str:
    rows = [
        f"| `{each.name}` | {each.kind} | {', '.join(each.labels) or 'none'} | {_cell(each.help)} |" for each in METRICS
    ]
    about = "How to serve them, and which to watch: [metrics](../observability.md#metrics)."
    return f"# Metrics\n\n{about}\n\n| metric | type | labels | says |\n|---|---|---|---|\n" + "\n".join(rows) + "\n"


def _sql() -> str:
    parts = [
        "# SQL functions",
        "The functions of the schema `outrider` that other programs may call. Who may call which: [roles](../roles.md).",
    ]
    files = {path.stem: path for path in SQL.rglob("functions/*.sql")}
    for name in PUBLIC_SQL:
        text = files[name].read_text()
        head = " ".join(line.removeprefix("--").strip() for line in text.splitlines() if line.startswith("--"))
        signature = re.search(r"create or replace function /\*schema\*/(\w+\(.*?\)\s*returns [^\n]*)", text, re.DOTALL)
        assert signature is not None, name
        parts += [f"## {name}", head.partition(": ")[2], f"```sql\noutrider.{signature[1]}\n```"]
    return "\n\n".join(parts) + "\n"


def _plain(text: str | None) -> str:
    """Help without the markup of the terminal."""
    return re.sub(r"(?<!\\)\[/?[a-z ]*\]|\x08", "", text or "").replace("\\[", "[").strip()


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
