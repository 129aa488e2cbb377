"""Finds the app that a command works for: `--app module:name`, else OUTRIDER_APP, else pyproject.toml."""

from __future__ import annotations

import importlib
import os
import sys
import tomllib
from pathlib import Path
from types import ModuleType

from outrider.app import Outrider
from outrider.error_text import describe
from outrider.errors import ConfigError

VARIABLE = "OUTRIDER_APP"


def find_app(asked: str | None) -> Outrider | None:
    """None when no app is named. Modules of the current folder can be imported, as with `python -m`."""
    for name, named_by in (
        (asked, "--app"),
        (os.environ.get(VARIABLE), VARIABLE),
        (in_pyproject("app", "shop:app"), "[tool.outrider] app in pyproject.toml"),
    ):
        if name:
            return _load(name, named_by)
    return None


def need_app(asked: str | None) -> Outrider:
    if (found := find_app(asked)) is None:
        raise ConfigError(
            "no app: name it with --app module:app, in OUTRIDER_APP, or as app under [tool.outrider] in pyproject.toml"
        )
    return found


def in_pyproject(setting: str, example: str) -> str | None:
    """A string under [tool.outrider] in the pyproject.toml of the current folder."""
    file = Path("pyproject.toml")
    if not file.is_file():
        return None
    try:
        found: object = tomllib.loads(file.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file.resolve()} is not valid TOML: {error}") from None
    for step in ("tool", "outrider", setting):
        found = found.get(step) if isinstance(found, dict) else None
    if found is not None and not isinstance(found, str):
        raise ConfigError(
            f'[tool.outrider] {setting} in {file.resolve()} is not a string: write it like {setting} = "{example}"'
        )
    return found


def _load(name: str, named_by: str) -> Outrider:
    module_name, _, attribute = name.partition(":")
    if not (module_name and attribute):
        raise ConfigError(f"{named_by} names {name!r}: write it as module:name, like shop:app")
    module = _import(module_name, named_by)
    apps = [f"{module_name}:{key}" for key, value in vars(module).items() if isinstance(value, Outrider)]
    instead = f"name it as {' or '.join(apps)}" if apps else "create one there: app = Outrider(context=...)"
    if not hasattr(module, attribute):
        raise ConfigError(f"{named_by} names {name!r}, but {module_name} has no {attribute!r}: {instead}")
    found = getattr(module, attribute)
    if not isinstance(found, Outrider):
        raise ConfigError(f"{named_by} names {name!r}, which is a {type(found).__name__}, not an Outrider: {instead}")
    return found


def _import(module_name: str, named_by: str) -> ModuleType:
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{module_name}.".startswith(f"{error.name}."):
            raise ConfigError(
                f"{named_by} names the module {module_name!r}, which is neither in {here} nor installed: "
                "run this in the folder that holds it, or correct the name"
            ) from None
        raise _broken(module_name, error) from error
    except (Exception, SystemExit) as error:
        raise _broken(module_name, error) from error


def _broken(module_name: str, error: BaseException) -> ConfigError:
    reason = describe(error).splitlines()[0]
    return ConfigError(
        f"importing {module_name!r} failed with {reason}; for the traceback run: python -c 'import {module_name}'"
    )
