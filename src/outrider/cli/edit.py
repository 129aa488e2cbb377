"""Another payload for a dead letter: from a file, or edited by hand in a file that only its owner can read."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import typer

from outrider.cli.output.text import tell
from outrider.errors import ReplayRefused
from outrider.postgres.admin.dead_letters import WholeLetter
from outrider.postgres.admin.replay import json_of, refuse_unfit
from outrider.subscription import Subscription


def from_file(file: str, found: Sequence[WholeLetter], declared: Iterable[Subscription]) -> str:
    """The new payload. It is refused if it cannot be decoded. `-` is standard input."""
    text = json_of(_read(file))
    refuse_unfit(found, text, declared)
    return text


def by_hand(found: Sequence[WholeLetter], declared: Sequence[Subscription]) -> str | None:
    """The payload as the operator edits it, again and again until it can be decoded; None when it is unchanged."""
    before = {each.edited or each.payload for each in found}
    if len(before) != 1:
        at = ", ".join(each.subscription for each in found) or "none"
        raise ReplayRefused(f"nothing was replayed: name one --subscription whose payload to edit; there are: {at}")
    [draft] = before
    if not draft:
        raise ReplayRefused(
            "nothing was replayed: its payload is too long to be read; give another with --payload FILE"
        )
    original = draft
    while True:
        draft = _edited(draft)
        try:
            text = json_of(draft)
            refuse_unfit(found, text, declared)
        except ReplayRefused as refused:
            if not sys.stdin.isatty():
                raise
            tell(f"outrider: {refused}", error=True)
            if not typer.confirm("Edit it again?", default=True, err=True):
                raise typer.Exit(1) from None
            continue
        return None if _same(text, original) else text


def _same(one: str, other: str) -> bool:
    """White space and the order of fields do not count; numbers are compared as they are written."""
    first, second = (json.loads(each, parse_float=str, parse_int=str) for each in (one, other))
    return bool(first == second)


def _read(file: str) -> str:
    try:
        return sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ReplayRefused(f"nothing was replayed: --payload {file}: {error}") from error


def _edited(text: str) -> str:
    """The text after the operator has edited it in $VISUAL or $EDITOR."""
    editor = os.environ.get("VISUAL") or os.environ.get("EDITOR") or "vi"
    with TemporaryDirectory(prefix="outrider-") as folder:
        file = Path(folder) / "payload.json"
        file.touch(mode=0o600)
        file.write_text(text, encoding="utf-8")
        try:
            code = subprocess.run([*shlex.split(editor), str(file)], check=False).returncode
            answer = file.read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            raise ReplayRefused(
                f"nothing was replayed: the editor {editor!r} failed ($VISUAL or $EDITOR): {error}"
            ) from error
    if code:
        raise ReplayRefused(f"nothing was replayed: the editor {editor!r} ended with code {code}")
    return answer
