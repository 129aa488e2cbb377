"""The catalogue of SQL: one statement or function per file, named by its verb, headed by its contract.

The files are valid SQL; the marker `/*schema*/` before a name becomes the quoted schema. Nothing else is replaced.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable

_HERE = files("outrider.postgres")
MARKER = "/*schema*/"


def render(text: str, schema: str) -> str:
    """`schema` has been checked to be a lower-case word (config.Settings), so quoting it is enough."""
    return text.replace(MARKER, f'"{schema}".')


@cache
def statement(name: str, schema: str) -> bytes:
    """One file of sql/, ready to execute."""
    return render((_HERE / "sql" / f"{name}.sql").read_text(), schema).encode()


def functions() -> Iterator[tuple[str, str]]:
    """The functions that live in the database, by name."""
    return _sorted(_HERE / "sql" / "functions")


def migrations() -> Iterator[tuple[str, str]]:
    """The numbered migrations in their order."""
    return _sorted(_HERE / "migrations")


def _sorted(folder: Traversable) -> Iterator[tuple[str, str]]:
    for file in sorted(folder.iterdir(), key=lambda file: file.name):
        if file.name.endswith(".sql"):
            yield file.name.removesuffix(".sql"), file.read_text()
