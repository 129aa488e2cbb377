"""The pages of the reference, made from the code: none of them can be out of date."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from textwrap import dedent
from typing import Any

import typer
from typer.main import get_command

import outrider
from outrider.cli.main import COMMANDS, cli
from outrider.config import Settings
from outrider.enqueue import EnqueueOptions
from outrider.inbox.inbox import Inbox
from outrider.observe.vocabulary import METRICS
from outrider.publish import PublishOptions
from outrider.relay.relay import Relay
from outrider.rollup.rollup import Rollup
from outrider.schedule import Schedule
from outrider.takeover import Takeover
from outrider.worker.handler import Handler
from outrider.worker.job_handler import JobHandler

SQL = Path(outrider.__file__).parent / "postgres" / "sql"
API = {
    "The application": ("Outrider",),
    "Events and handlers": ("Event", "Envelope", "HandlerContext", "SyncHandlerContext", "Reader"),
    "Jobs": ("Job", "JobContext", "SyncJobContext", "Enqueued"),
    "Retries": ("RetryPolicy", "PATIENT_RETRY_POLICY", "Backoff", "Breaker", "Retry", "Snooze", "Bury"),
    "Errors": ("OutriderError", "PublishRefused", "EnqueueRefused", "TerminalError", "Cancelled"),
}
MANY = {
    "Dead letters: `app.dead_letters`": "outrider.postgres.admin.recovery.DeadLetters",
    "Jobs: `app.jobs`": "outrider.postgres.admin.jobs.Jobs",
}
"""What an operation of the application returns, under its heading."""
INTERNAL = ("chosen", "lent", "raised", "refuse_unreadable", "shut_out", "take_progress")
"""Public names of the classes in API that only Outrider itself uses."""
PUBLIC_SQL = {
    "Publish and enqueue": ("publish", "enqueue"),
    "Subscriptions": (
        "pause", "pause_all", "resume", "resume_all", "narrow", "rename", "retire", "move_generation",
    ),
    "Events and dead letters": (
        "dead_letters", "replay", "outbox_replay", "discard", "withdraw", "waiting_events", "waiting_behind",
    ),
    "Jobs and schedules": (
        "cancel", "run_now", "jobs_page", "change_jobs", "pause_schedule", "resume_schedule", "run_schedule",
    ),
    "Rollups": (
        "rollup_preflight", "rollup_install", "rollup_verify", "rollup_run", "rollup_tick", "rollup_retry",
        "rollup_uninstall",
    ),
    "Settings and retention": ("set_setting", "allow_content_class", "attach_segment", "erase"),
}  # fmt: skip
OF_COMMANDS = frozenset({
    "note_adoption", "tenant_page", "note_export", "canary_begin", "canary_send", "canary_end", "rollup_work_noted",
})  # fmt: skip
"""Functions for operators that only commands of Outrider call: they may change in any version."""
OPTIONS: dict[str, tuple[type, str]] = {
    "app.handler, app.subscribe": (Handler, "[Handle](../guide.md#handle)"),
    "app.job": (JobHandler, "[Declare a job](../jobs.md#declare)"),
    "app.publish, app.envelope": (PublishOptions, "[Publish](../guide.md#publish)"),
    "app.enqueue, app.enqueue_many": (EnqueueOptions, "[Enqueue](../jobs.md#enqueue)"),
    "app.schedule": (Schedule, "[Schedules](../schedules.md)"),
    "app.relay": (Relay, "[Relays](../relay.md)"),
    "app.inbox, app.replica": (Inbox, "[Inboxes](../inbox.md)"),
    "app.rollup": (Rollup, "[Rollups](../rollups.md)"),
    "app.takeover": (Takeover, "[Takeover](../takeover.md)"),
}
"""The class that holds the options of each method, and the page that explains them."""
MOST_LINE = 80
_ATTRIBUTE = re.compile(r'^    (\w+): .*?(?:= (.*?))?\n    """(.*?)"""', re.MULTILINE | re.DOTALL)
_LABEL = re.compile(r"\n(?=(?:p_\w+[^:\n]*|Locks|Reads|blocks):|Returns )")
_INDENTED = re.compile(r"(?:^ +\S.*(?:\n|\Z))+", re.MULTILINE)


MODULES = {
    "signals": "What a process tells about its work: `app.signals.listen(...)`.",
    "errors": "Every exception that Outrider raises.",
    "testing": "Helpers for the tests of an application.",
}


def pages() -> Iterator[tuple[str, str]]:
    yield "reference/api.md", _api()
    for name, about in MODULES.items():
        yield f"reference/{name}.md", _module(name, about)
    yield "reference/options.md", _options()
    yield "reference/cli.md", _command_line()
    yield "reference/settings.md", _settings()
    yield "reference/metrics.md", _metrics()
    yield "reference/sql.md", _sql()


def _api() -> str:
    parts = ["# API", "The names that `import outrider` gives."]
    options = (
        "    options:\n      heading_level: 3\n      inherited_members: true\n      show_bases: false\n"
        f'      filters: ["!^_", "!^({"|".join(INTERNAL)})$"]\n'
    )
    for subject, names in API.items():
        parts += [f"## {subject}", *(f"::: outrider.{name}\n{options}" for name in names)]
    for subject, path in MANY.items():
        parts += [f"## {subject}", f"::: {path}\n{options}      show_root_heading: false"]
    return "\n\n".join(parts) + "\n"


def _module(name: str, about: str) -> str:
    options = "    options:\n      show_root_heading: false\n      show_root_toc_entry: false"
    return f"# {name.capitalize()}\n\n{about}\n\n::: outrider.{name}\n{options}\n"


def _options() -> str:
    parts = ["# Options", "The keyword arguments of each method, and of its blocking variant."]
    for methods, (declared, page) in OPTIONS.items():
        heading = ", ".join(f"`{each}`" for each in methods.split(", "))
        listed = list(options_of(declared))
        if any(default for _, default, _ in listed):
            rows = ["| option | default | meaning |", "|---|---|---|"]
            rows += [f"| `{name}` | {default} | {_cell(said)} |" for name, default, said in listed]
        else:
            rows = ["| option | meaning |", "|---|---|", *(f"| `{name}` | {_cell(said)} |" for name, _, said in listed)]
        parts += [f"## {heading}", f"Explained in {page}.", "\n".join(rows)]
    return "\n\n".join(parts) + "\n"


def options_of(declared: type) -> Iterator[tuple[str, str, str]]:
    """Name, default and sentence of each option, from the source: only there a field has its sentence."""
    [body] = [
        each.body for each in ast.parse(dedent(inspect.getsource(declared))).body if isinstance(each, ast.ClassDef)
    ]
    for each, after in zip(body, [*body[1:], None], strict=True):
        if not isinstance(each, ast.AnnAssign) or (default := _default(each, declared)) is None:
            continue
        match after:
            case ast.Expr(value=ast.Constant(value=str(said))):
                yield ast.unparse(each.target), default, said
            case _:
                raise ValueError(f"{declared.__name__}.{ast.unparse(each.target)} has no sentence")


def _default(field: ast.AnnAssign, declared: type) -> str | None:
    """None if the field is no option; empty if its sentence has the default."""
    match field.value:
        case ast.Call(func=ast.Name(id="option"), args=[default, *_]):
            text = ast.unparse(default).replace("'", '"')
            return {"MISSING": "required", "()": "none", "DEFAULT_RETRY_POLICY": "five retries"}.get(text, f"`{text}`")
        case ast.Constant() as default if declared is Schedule:
            return f"`{default.value!r}`".replace("'", '"')
        case None if not hasattr(declared, "__dataclass_fields__"):
            return ""
    return None


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
    yield _with_code(_plain(command.help)) + "\n"
    rows = [row for each in command.params if (row := _parameter(each)) is not None]
    if rows and not hasattr(command, "commands"):
        yield "| option | meaning |\n|---|---|\n" + "\n".join(rows) + "\n"
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
        "`p_by` and `p_reason` are who acts and why, for the audit.",
    ]
    files = {path.stem: path for path in SQL.rglob("functions/*.sql")}
    for subject, names in PUBLIC_SQL.items():
        parts.append(f"## {subject}")
        for name in names:
            parts += _function(name, files[name].read_text())
    return "\n\n".join(parts) + "\n"


def _function(name: str, text: str) -> list[str]:
    head = "\n".join(line.removeprefix("--").strip() for line in text.partition("\ncreate ")[0].splitlines())
    about, *labelled = _LABEL.split(head.partition(": ")[2])
    said = [re.sub(r"^(p_\w+)", r"`\1`", " ".join(each.split())) for each in labelled]
    signature = re.search(r"create or replace function /\*schema\*/(\w+\(.*?)\n    language ", text, re.DOTALL)
    assert signature is not None, name
    call = signature[1].replace("/*schema*/", "outrider.")
    if len(call) > MOST_LINE:
        call = re.sub(r",\s+(?=\w+ )", ",\n    ", call)
        call = re.sub(r"returns table \((\w[^)]*[^)\s])\)", r"returns table (\n    \1\n)", call)
    return [
        f"### {name}",
        about[0].upper() + " ".join(about.split())[1:],
        f"```sql\noutrider.{dedent(call)}\n```",
        *(["\n".join(f"- {each}" for each in said)] if said else []),
    ]


def _plain(text: str | None) -> str:
    """Help without the markup of the terminal."""
    return re.sub(r"(?<!\\)\[/?[a-z ]*\]|\x08", "", text or "").replace("\\[", "[").strip()


def _with_code(text: str) -> str:
    """Indented lines of a help text are commands: a block of code. So is a single example."""
    text = re.sub(r"^Example: (.+)$", r"Example:\n\n  \1", text, flags=re.MULTILINE)
    return _INDENTED.sub(lambda lines: f"```sh\n{dedent(lines[0]).rstrip()}\n```\n", text)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
