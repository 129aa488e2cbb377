"""An Alembic project as its files describe it: where its revisions are, which are heads. Alembic is not imported."""

from __future__ import annotations

import ast
import configparser
import os
import re
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from outrider.errors import ConfigError

_SEPARATORS = {"space": " ", "newline": "\n", "os": os.pathsep, ":": ":", ";": ";"}
_WANTED = ("revision", "down_revision", "outrider_schema", "outrider_version")


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
