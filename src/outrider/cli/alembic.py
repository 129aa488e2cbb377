"""`outrider migrate --alembic`: the pending DDL, and the app's subscriptions, as revisions of an Alembic project."""

from __future__ import annotations

import ast
import configparser
import json
import os
import re
import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import indent
from uuid import uuid4

import typer

from outrider.cli.templates import fill
from outrider.errors import ConfigError, DeclarationError
from outrider.postgres.schema import registration, uninstall
from outrider.postgres.schema.migrate import APPLIED_BY, Migration, held_block, known, script
from outrider.postgres.schema.phases import Phase, through
from outrider.postgres.schema.registration import overlap
from outrider.subscription import Subscription

PATIENCE = "60s"
"""How long to wait for another migration of the same schema."""
_REGISTERED = r"""register\('([^']+)'::text, '(\w+)'::text, '(\w+)'::text, (NULL|'{[^}]*}')"""
"""Matches a call that registration.script has written: name, kind, context and event types."""
_SEPARATORS = {"space": " ", "newline": "\n", "os": os.pathsep, ":": ":", ";": ";"}
_WANTED = ("revision", "down_revision", "outrider_schema", "outrider_version")


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
            if forgotten and overlap(kind, _listed(types), new):
                raise DeclarationError(
                    f"{new.name} is new and wants the same events as {old}, which an earlier revision has registered and "
                    f'the app does not declare. Renamed: add a revision with op.execute("select {schema}.rename('
                    f"'{old}', '{new.name}')\"). Given up: one with op.execute(\"select {schema}.retire('{old}')\"). "
                    "Both wanted: set OUTRIDER_ALLOW_ORPHANS=1"
                )


def _listed(types: str) -> list[str] | None:
    return None if types == "NULL" else [each for each in types[2:-2].split(",") if each]


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


@dataclass(frozen=True, slots=True)
class Revision:
    file: Path
    id: str
    revises: tuple[str, ...]
    schema: str | None
    version: int
    """The version to which it migrates Outrider's schema; 0 if it is not one of ours."""
    text: str


@dataclass(frozen=True, slots=True)
class Project:
    folders: Sequence[Path]
    revisions: Sequence[Revision]

    def head(self, asked: str | None) -> Revision | None:
        """The revision that the next one follows; None if there is none yet."""
        followed = {each for revision in self.revisions for each in revision.revises}
        heads = [each for each in self.revisions if each.id not in followed]
        names = ", ".join(sorted(each.id for each in heads)) or "none"
        if asked is not None:
            found = [each for each in heads if each.id.startswith(asked)]
            if len(found) != 1:
                raise ConfigError(f"--head {asked} is not one of the heads: {names}")
            return found[0]
        if len(heads) > 1:
            raise ConfigError(
                f"there are several heads: {names}; say which one to follow with --head, or alembic merge them"
            )
        return heads[0] if heads else None

    def version(self, schema: str) -> int:
        """The version to which the existing revisions migrate the schema."""
        return max((each.version for each in self.revisions if each.schema == schema), default=0)

    def folder(self, head: Revision | None) -> Path:
        """Where the next revision goes. With several folders: beside the head, as Alembic does."""
        if head is None and len(self.folders) > 1:
            raise ConfigError(f"there are several folders of versions: {_list(self.folders)}; name one with --versions")
        return head.file.parent if head is not None and len(self.folders) > 1 else self.folders[0]


def find_project(versions: Path | None) -> Project:
    folders = _folders()
    recursive = bool(folders) and _option("recursive_version_locations") in (True, "true")
    if versions is not None and versions.resolve() not in [each.resolve() for each in folders]:
        folders = [*folders, versions]
    if not folders:
        raise ConfigError(
            "no Alembic project here: neither alembic.ini nor [tool.alembic] in pyproject.toml has a script_location; "
            "run this in the folder that holds it, or name the folder of its revisions with --versions"
        )
    pattern = "**/*.py" if recursive else "*.py"
    found = {file.resolve(): file for folder in folders for file in sorted(folder.glob(pattern))}
    revisions = [_read(file) for file in found.values() if not file.name.startswith((".#", "__init__"))]
    return Project(folders, [each for each in revisions if each is not None])


def _folders() -> list[Path]:
    location = _option("script_location")
    if location is None:
        return []
    home = _path(str(location))
    if not home.is_dir():
        raise ConfigError(
            f"Alembic's script_location is {home}, which is not a folder: correct it, or run this where it is relative to"
        )
    listed = _option("version_locations")
    if isinstance(listed, str):
        separator = _option("path_separator") or _option("version_path_separator")
        parts = (
            re.split(r", *| +", listed)
            if separator is None
            else listed.split(_SEPARATORS.get(str(separator), os.pathsep))
        )
        listed = [part.strip() for part in parts]
    return [_path(part) for part in listed if part] if isinstance(listed, list) else [home / "versions"]


def _path(location: str) -> Path:
    if ":" in location and not Path(location).is_absolute():
        raise ConfigError(
            f"Alembic's folder is given as a package, {location!r}, which is not looked up here: name the folder of its "
            "revisions with --versions"
        )
    return Path(location)


def _option(name: str) -> object:
    """Looked up as Alembic does: in the ini file, else in pyproject.toml. Relative paths start in the current folder."""
    given = Path(os.environ.get("ALEMBIC_CONFIG") or "alembic.ini")
    toml = given if given.name == "pyproject.toml" else Path("pyproject.toml")
    ini = Path("alembic.ini") if given.name == "pyproject.toml" else given
    config = configparser.ConfigParser({"here": ini.absolute().parent.as_posix()})
    try:
        config.read(ini, encoding="utf-8")
        if config.has_option("alembic", name):
            return config.get("alembic", name)
        table = tomllib.loads(toml.read_text(encoding="utf-8")) if toml.is_file() else {}
    except (configparser.Error, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"Alembic's settings cannot be read: {str(error).splitlines()[0]}") from None
    value = table.get("tool", {}).get("alembic", {}).get(name)
    here = {"here": toml.absolute().parent.as_posix()}
    if isinstance(value, list):
        return [str(each) % here for each in value]
    return value % here if isinstance(value, str) else value


def _read(file: Path) -> Revision | None:
    """Reads the assignments, plain or annotated, without importing the file. None for a file that is no revision."""
    text = file.read_text(encoding="utf-8")
    found: dict[str, object] = {}
    try:
        for node in ast.parse(text).body:
            targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
            for target in targets:
                if isinstance(target, ast.Name) and target.id in _WANTED:
                    found[target.id] = ast.literal_eval(getattr(node, "value", None) or ast.Constant(None))
    except (SyntaxError, ValueError) as error:
        raise ConfigError(
            f"{file} cannot be read as a revision: {error}; write revision and down_revision as string literals"
        ) from None
    if "revision" not in found:
        return None
    down, schema, version = found.get("down_revision"), found.get("outrider_schema"), found.get("outrider_version")
    revises = (down,) if isinstance(down, str) else tuple(down) if isinstance(down, list | tuple) else ()
    ours = isinstance(schema, str) and isinstance(version, int)
    return Revision(
        file,
        str(found["revision"]),
        revises,
        str(schema) if ours else None,
        version if isinstance(version, int) else 0,
        text,
    )


def _list(folders: Sequence[Path]) -> str:
    return ", ".join(str(each) for each in folders)
