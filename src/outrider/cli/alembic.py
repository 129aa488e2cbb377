"""`outrider migrate --alembic`: the pending DDL, and the app's subscriptions, as revisions of an Alembic project."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from textwrap import indent
from uuid import uuid4

import typer

from outrider.cli.alembic_project import Project, find_project
from outrider.cli.templates import fill
from outrider.errors import ConfigError, DeclarationError
from outrider.postgres.schema import registration, uninstall
from outrider.postgres.schema.migrate import APPLIED_BY, Migration, held_block, known, script
from outrider.postgres.schema.orphans import overlap
from outrider.postgres.schema.phases import Phase, through
from outrider.subscription import Subscription

PATIENCE = "60s"
"""How long to wait for another migration of the same schema."""
_REGISTERED = r"""register\('([^']+)'::text, '(\w+)'::text, '(\w+)'::text, (?:NULL|'{([^}]*)}')"""
"""Matches a call that registration.script has written: name, kind, context and event types."""


def write(
    schema: str,
    subscriptions: Sequence[Subscription],
    *,
    after: int | None = None,
    phase: Phase = Phase.post,
    versions: Path | None = None,
    head: str | None = None,
    allow_orphans: bool = False,
) -> list[Path]:
    """Writes a revision for the schema and one for the subscriptions, unless earlier revisions contain them."""
    project = find_project(versions)
    head_now = project.head(head)
    folder = versions or project.folder(head_now)
    after = project.version(schema) if after is None else after
    if not allow_orphans:
        _refuse_renamed(subscriptions, schema, project)
    revisions: list[tuple[str, str, dict[str, str]]] = []  # the end of the file name, the template, its values
    if steps := through(phase, [step for step in known() if step.version > after]):
        values = _schema_values(schema, after, steps, phase)
        revisions.append((f"outrider_{steps[-1].version:04}", "alembic_schema.py", values))
    if new := _unwritten(subscriptions, schema, project):
        values = {"subscriptions": "\n".join(new)}
        revisions.append(("outrider_subscriptions", "alembic_subscriptions.py", values))
    written, previous = [], head_now.id if head_now else None
    for slug, template, values in revisions:
        revision = uuid4().hex[-12:]
        values |= {"schema": schema, "applied_by": APPLIED_BY, "revision": revision, "revises": previous or ""}
        values["down_revision"] = f'"{previous}"' if previous else "None"
        written.append(_save(folder / f"{revision}_{slug}.py", fill(template, **values)))
        previous = revision
    return written


def tell(written: Sequence[Path], schema: str, phase: Phase, *, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps({"schema": schema, "written": [str(file) for file in written]}, indent=2))
        return
    for file in written:
        typer.echo(f"wrote {os.path.relpath(file)}")
    if written:
        typer.echo("next: alembic upgrade head")
    elif phase is Phase.pre:
        typer.echo(f'nothing to write: the revisions already have the pre phase of the schema "{schema}"')
    else:
        typer.echo(
            f'nothing to write: the revisions already bring the schema "{schema}" to version {known()[-1].version}'
        )


def _schema_values(schema: str, after: int, steps: Sequence[Migration], phase: Phase) -> dict[str, str]:
    first, last = str(steps[0].version), str(steps[-1].version)
    plain = script(schema, f"{APPLIED_BY} by Alembic", after, phase).removeprefix("begin;\n").removesuffix("commit;\n")
    upgrade = fill(
        "alembic_upgrade.sql",
        schema=schema,
        after=str(after),
        last=last,
        hold=indent(held_block(schema, PATIENCE), "    "),
        script=plain.strip(),
    )
    undo = fill("alembic_forward_only.sql", schema=schema, after=str(after)) if after else uninstall.script(schema)
    comment = (
        "# Forward only."
        if after
        else "# Drops the schema. Refused while events are unread or waiting, dead letters exist, or it is in use."
    )
    return {
        "first": first, "last": last, "upgrade": _raw(f"\n{upgrade}"),
        "downgrade": _raw(f"\n{undo.strip()}\n"), "downgrade_comment": comment,
    }  # fmt: skip


def _unwritten(subscriptions: Iterable[Subscription], schema: str, project: Project) -> list[str]:
    """The calls that register the subscriptions, without those that an earlier revision contains."""
    calls = [_raw(registration.script(each, schema).strip().removesuffix(";")) for each in subscriptions]
    return [f"    {call}," for call in calls if not any(call in each.text for each in project.revisions)]


def _refuse_renamed(subscriptions: Sequence[Subscription], schema: str, project: Project) -> None:
    """The check of orphans.refuse_renamed, without a database: earlier revisions show what was registered."""
    text = "\n".join(each.text for each in project.revisions)
    gone = set(re.findall(rf"""{schema}"?[.](?:rename|retire)\('([^']+)'""", text))
    known = {name: rest for name, *rest in re.findall(rf'''"{schema}".{_REGISTERED}''', text)}
    known |= {
        new: known[old]
        for old, new in re.findall(rf"""{schema}"?[.]rename\('([^']+)', *'([^']+)'""", text)
        if old in known
    }
    declared = {each.name for each in subscriptions}
    for new in subscriptions:
        for old, (kind, context, types) in known.items():
            forgotten = old not in declared | gone and context == new.context and new.name not in known
            if forgotten and overlap(kind, types.split(",") if types else None, new):
                raise DeclarationError(
                    f"{new.name} is new and wants the same events as {old}, which an earlier revision has registered and "
                    f'the app does not declare. Renamed: add a revision with op.execute("select {schema}.rename('
                    f"'{old}', '{new.name}')\"). Given up: one with op.execute(\"select {schema}.retire('{old}')\"). "
                    "Both wanted: set OUTRIDER_ALLOW_ORPHANS=1"
                )


def _save(file: Path, text: str) -> Path:
    try:
        file.parent.mkdir(exist_ok=True)
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{error.filename} cannot be written: {error.strerror}; choose another --versions") from error
    return file


def _raw(text: str) -> str:
    """A raw string literal of Python, so that the file shows the SQL as it is run."""
    assert '"""' not in text
    return f'r"""{text}"""'
