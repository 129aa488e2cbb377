"""Every command, whoever adds one: an example in its help, --json, what it needs; what it finds is never obeyed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from tests.cli import inprocess
from typer.main import get_command

from outrider.cli.main import cli

ROOT = Path(__file__).parents[2]
HOSTILE = "\x1b]0;owned\x07[bold]x[/]\nfake"

WITHOUT_JSON = {
    "demo": "a show for people",
    "dashboard": "runs until Ctrl-C",
    "dev": "runs until Ctrl-C",
    "worker": "runs until it is told to stop; its log has --log-json",
    "relay run": "runs until it is told to stop; its log has --log-json",
}
NO_COMMANDS = {"listener", "jobs", "leases"}
"""Names of sessions: `outrider jobs` is an application_name."""
DESTRUCTIVE = {
    "uninstall", "event withdraw", "subscription narrow", "subscription retire", "job cancel", "relay adopt", "inbox retry",
    "job run-now", "job retry", "rollup uninstall", "dlq replay", "dlq discard", "tenants erase",
}  # fmt: skip


def commands(command: Any = None, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    found: Any = command or get_command(cli)
    below = found.list_commands(None) if hasattr(found, "list_commands") else []
    if path and (not below or found.invoke_without_command):
        yield " ".join(path), found
    for name in below:
        yield from commands(found.get_command(None, name), (*path, name))


def options(command: Any) -> set[str]:
    return {option for each in command.params for option in each.opts}


@pytest.mark.parametrize(("path", "command"), [pytest.param(*each, id=each[0]) for each in commands()])
def test_a_command_says_how_it_is_used(path: str, command: Any) -> None:
    taught = command.help
    assert "Needs:" in taught
    example = taught.partition("Example")[2]
    assert f"[bold]outrider {path.removesuffix(' run') if path == 'relay run' else path}" in example
    assert ("--json" in options(command)) == (path not in WITHOUT_JSON)
    assert ("--yes" in options(command)) == (path in DESTRUCTIVE)
    if "--dsn" in options(command):
        assert {"--app", "--embedded", "--schema"} <= options(command), "a database is named in one way"


def test_the_exceptions_are_commands() -> None:
    assert set(WITHOUT_JSON) | DESTRUCTIVE <= {path for path, _ in commands()}


def test_exit_codes_are_documented(tmp_path: Path) -> None:
    said = " ".join(inprocess.run(tmp_path, "--help").stdout.split())
    assert "Exit codes: 0 done; 1 refused or failed, with one sentence on stderr; 2 the command line is wrong" in said


def test_nothing_in_the_database_is_obeyed(database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SQL may write anything; a terminal must not do what it says, nor take a part of it for a line of its own."""
    monkeypatch.setenv("COLUMNS", "250")
    with psycopg.connect(database, autocommit=True) as conn:
        for kind in ("reader", "handler"):
            conn.execute("select outrider.register(%s, %s, 'a', %s)", [f"{kind}{HOSTILE}", kind, [HOSTILE]])
        conn.execute(
            "update outrider.subscription set context = %s, paused_at = now() - interval '1 h' where kind = 'reader'",
            [HOSTILE],
        )
        conn.execute(
            """insert into outrider.worker (id, host, pid, version, generation, subscriptions, unable, seen_at)
               values (gen_random_uuid(), %(h)s, 1, %(h)s, 0, %(names)s, %(names)s, now())""",
            {"h": HOSTILE, "names": [f"handler{HOSTILE}"]},
        )
        conn.execute(
            """insert into outrider.job (subscription, event_id, event_type, status, run_at, queue, last_error_code,
                   last_error, buried_at)
               select 'handler' || %(h)s, gen_random_uuid(), %(h)s, status, now() - interval '1 h', %(h)s, %(h)s, %(h)s,
                      now()
               from unnest('{pending,failed}'::text[]) as status""",
            {"h": HOSTILE},
        )
        conn.execute(
            """insert into outrider.audit (by, action, subscription, details)
               values (%(h)s, %(h)s, %(h)s, jsonb_build_object('reason', %(h)s::text, %(h)s::text, %(h)s::text))""",
            {"h": HOSTILE},
        )
        conn.execute(
            "insert into outrider.setting (name, value, least, greatest, entered) values (%s, 1, 1, 1, %s)",
            [HOSTILE, HOSTILE],
        )
        for command in (
            ["status"], ["doctor"], ["subscription", "list"], ["generations"], ["relay", "list"], ["inbox", "list"],
            ["job", "list"], ["dlq", "list"], ["rollup", "status"], ["migrate", "status"],
            ["subscription", "resume", "--all"], ["subscription", "pause", HOSTILE], ["audit"], ["setting", "list"],
            ["setting", "set", HOSTILE, "2"], ["setting", "set", HOSTILE, "1"],
        ):  # fmt: skip
            done = inprocess.run(tmp_path, *command, "--dsn", database)
            said = done.stdout + done.stderr
            assert "\x1b" not in said, command
            assert not [line for line in done.stdout.splitlines() if line.startswith("fake")], command
            if command[0] in ("status", "generations", "subscription"):
                assert "[bold]x[/]" in said, command


def test_what_the_runbook_and_the_doctor_name_is_there() -> None:
    """No advice at night that the command line does not know."""
    known = dict(commands())
    sources = [ROOT / "docs/runbook.md", *sorted((ROOT / "src/outrider/doctor").glob("*.py"))]
    for source in sources:
        text = source.read_text()
        for first, second in re.findall(r"(?<![./\w])outrider ([a-z]+)(?:\s+([a-z-]+))?", text):
            assert first in known or f"{first} {second}" in known, f"{source.name} names outrider {first} {second}"


def named(text: str) -> Iterator[str]:
    """The command lines in code: in a line of text, in a block for the shell."""
    yield from re.findall(r"`outrider ([^`]+)`", text)
    for block in re.findall(r"^```(?:sh|console)\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
        lines = block.replace("\\\n", " ")
        yield from re.findall(r"(?:^|^\$ |&& |; )outrider (.+?)(?: +#.*)?$", lines, re.MULTILINE)


PAGES = [
    *ROOT.glob("*.md"),
    *(page for folder in ("docs", "examples", "ops") for page in (ROOT / folder).rglob("*.md")),
]


@pytest.mark.parametrize(
    "page",
    [*sorted(PAGES), *sorted((ROOT / "src/outrider/doctor").glob("*.py"))],
    ids=lambda page: str(page.relative_to(ROOT)),
)
def test_commands_on_the_pages_exist_with_their_options(page: Path) -> None:
    known = dict(commands())
    for line in named(page.read_text()):
        words = [word.rstrip(".,;:)") for word in re.split(r"[\s\[\]|…]+", line) if word]
        if not words or words[0].startswith("--") or words[0] in NO_COMMANDS:  # `outrider …`
            continue
        path = next((each for each in (" ".join(words[:2]), words[0], f"{words[0]} run") if each in known), None)
        group = any(each.startswith(f"{words[0]} ") for each in known)
        assert path or (group and len(words) == 1), f"outrider {line}"
        if path:
            below = options(known[path]) | (options(known["relay run"]) if path == "relay" else set())
            assert {word.partition("=")[0] for word in words if re.match("--[a-z]", word)} <= below | {"--help"}, (
                f"outrider {line}"
            )
