"""The catalogue of SQL: one statement or function per file, in folders by subject.

`sql/<subject>/functions/` holds functions, which a migration installs in the database. All other files of `sql/` are
statements, which Python sends. The files are valid SQL; the marker `/*schema*/` before a name becomes the quoted schema.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable

_HERE = files("outrider.postgres")
_SQL = _HERE / "sql"
MARKER = "/*schema*/"


def render(text: str, schema: str) -> str:
    """`schema` has been checked to be a lower-case word (config.Settings), so quoting it is enough."""
    return text.replace(MARKER, f'"{schema}".')


@cache
def statement(name: str, schema: str) -> bytes:
    """The statement of a file: `jobs/job_counts` is that of sql/jobs/job_counts.sql."""
    return render((_SQL / f"{name}.sql").read_text(), schema).encode()


def functions() -> Iterator[tuple[str, str]]:
    """Name and text of the functions of all subjects, in the order of their names, in which they are installed."""
    return _sorted(subject / "functions" for subject in _SQL.iterdir())


def migrations() -> Iterator[tuple[str, str]]:
    """Name and text of the migrations, in their order."""
    return _sorted([_HERE / "migrations"])


def _sorted(folders: Iterable[Traversable]) -> Iterator[tuple[str, str]]:
    found = [file for folder in folders if folder.is_dir() for file in folder.iterdir() if file.name.endswith(".sql")]
    for file in sorted(found, key=lambda file: file.name):
        yield file.name.removesuffix(".sql"), file.read_text()
