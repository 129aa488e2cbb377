"""`outrider contracts`: snapshots of what is published, the check against them, and the catalogue. No database."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from outrider.cli.declarations import load
from outrider.cli.options import Commands
from outrider.cli.target import JsonOption, in_pyproject
from outrider.contract import Contract, ContractChange, Snapshot, catalogue, compare, judge, snapshots
from outrider.contract.catalogue import HEAD
from outrider.contract.judge import breaking_fix
from outrider.errors import ConfigError

FOLDER = "contracts"

commands = Commands(no_args_is_help=True)

AppsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--app",
        metavar="MODULE:NAME",
        help="The app, like shop:app. Repeatable, for several contexts of a repository. "
        "Default: OUTRIDER_APP, or app in pyproject.toml.",
    ),
]
DirOption = Annotated[
    Path | None,
    typer.Option(
        "--dir",
        metavar="DIR",
        help="The folder of the snapshots. Default: contracts in pyproject.toml, or contracts/.",
    ),
]
AgainstOption = Annotated[
    list[Path] | None,
    typer.Option("--against", metavar="DIR", help="A folder with the snapshots of other producers. Repeatable."),
]


@commands.command()
def snapshot(
    app: AppsOption = None,
    dir: DirOption = None,  # noqa: A002
    force: Annotated[
        bool, typer.Option("--force", help="Also write what breaks readers; only for events that were never published.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Write a snapshot of every event that the app publishes.

    One file per event type and version, as JSON Schema. Commit them, and copy them to
    those who read the events. A change that breaks readers is refused: it needs a new
    version.

    Needs: no database. It imports the app.

    Examples:

      [bold]outrider contracts snapshot --app shop:app[/]
      [bold]outrider contracts snapshot --app shop:app --app billing:app --dir contracts[/]
    """
    known = load(app, _folder(dir))
    broken = {(each.type, each.version): each for each in known.unreadable}
    answer, refused = [], 0
    for key, contract in known.current.items():
        file = snapshots.path_of(Path(known.folder), contract)
        if key in broken and not force:
            refused += 1
            answer.append(_Written(file, "refused", why=f"cannot be read: {broken[key].why}"))
            continue
        done = _write(file, contract, known.kept.get(key), force=force)
        refused += done.outcome == "refused"
        answer.append(done)
    if as_json:
        typer.echo(json.dumps({"folder": known.folder, "snapshots": [each.as_json() for each in answer]}, indent=2))
    else:
        for each in answer:
            typer.echo(str(each))
        if not answer:
            typer.echo("the app publishes no event of its own: nothing to write")
    if refused:
        raise typer.Exit(1)


@commands.command()
def check(
    app: AppsOption = None,
    dir: DirOption = None,  # noqa: A002
    against: AgainstOption = None,
    today: Annotated[
        datetime | None,
        typer.Option("--today", formats=["%Y-%m-%d"], metavar="DATE", help="Check deprecations as of this day."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Check that events and views still fit the snapshots.

    Events are compared with your snapshots, views with those of their producers. It
    says what would break, for whom, and what to do. Exits with 1 if anything would.
    In pytest: test_contracts = outrider.testing.contract_test("shop:app").

    Needs: no database. It imports the app, and changes nothing.

    Examples:

      [bold]outrider contracts check --app shop:app[/]
      [bold]outrider contracts check --app billing:app --against ../shop/contracts[/]
      [bold]outrider contracts check --app shop:app --today 2027-02-01[/]
    """
    known = load(app, _folder(dir), against or [])
    report = judge(known, (today or datetime.now(UTC)).date())
    typer.echo(json.dumps(report.as_json(), indent=2) if as_json else str(report))
    if report.fails:
        raise typer.Exit(1)


@commands.command()
def docs(
    app: AppsOption = None,
    dir: DirOption = None,  # noqa: A002
    against: AgainstOption = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FILE", help="The file. Default: README.md in the folder; - prints it."),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Overwrite the file even if this command did not write it.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Write a page about all events, their versions and their readers.

    The page changes only when the declarations change, so it can be committed.

    Needs: no database. It imports the app.

    Examples:

      [bold]outrider contracts docs --app shop:app --app billing:app[/]
      [bold]outrider contracts docs --app shop:app --out docs/events.md[/]
    """
    known = load(app, _folder(dir), against or [])
    page = catalogue(known)
    if out == Path("-"):
        typer.echo(json.dumps({"file": None, "page": page}, indent=2) if as_json else page, nl=as_json)
        return
    file = Path(known.folder) / "README.md" if out is None else out
    outcome = _text_outcome(file, page)
    if outcome == "updated" and not force and not _is_catalogue(file):
        raise ConfigError(
            f"{file} was not written by outrider contracts docs: name another file with --out, or overwrite it with --force"
        )
    if outcome != "unchanged":
        snapshots.write(file, page)
    typer.echo(json.dumps({"file": str(file), "outcome": outcome}, indent=2) if as_json else f"{outcome:<10} {file}")


def _is_catalogue(file: Path) -> bool:
    try:
        return file.read_text(encoding="utf-8").startswith(HEAD)
    except (OSError, ValueError):
        return False


class _Written:
    """What was done with one snapshot."""

    def __init__(
        self,
        file: Path,
        outcome: str,
        changes: list[ContractChange] | None = None,
        why: str | None = None,
        fix: str | None = None,
    ) -> None:
        self.file = file
        self.outcome = outcome
        self.changes = changes or []
        self.why = why
        self.fix = fix or "restore it from version control, or delete it if it was never published"

    def __str__(self) -> str:
        lines = [f"{self.outcome:<10} {self.file}"]
        if self.why is not None:
            lines.append(f"  {self.why}")
        lines += [f"    {change}{'' if change.breaks else ' (breaks nobody)'}" for change in self.changes]
        if self.outcome == "refused":
            first, *rest = self.fix.splitlines()
            lines += [f"  fix: {first}", *(f"       {line}" for line in rest)]
        return "\n".join(lines)

    def as_json(self) -> dict[str, object]:
        changes = [
            {"path": each.path, "kind": each.kind, "breaks": each.breaks, "says": str(each)} for each in self.changes
        ]
        return {"file": str(self.file), "outcome": self.outcome, "changes": changes, "why": self.why}


def _write(file: Path, contract: Contract, kept: Snapshot | None, *, force: bool) -> _Written:
    changes = [] if kept is None else compare(kept.contract, contract)
    if not force and any(change.breaks for change in changes):
        return _Written(file, "refused", changes, "would break readers:", breaking_fix(contract))
    outcome = _text_outcome(file, contract.text)
    if outcome != "unchanged":
        snapshots.write(file, contract.text)
    return _Written(file, outcome, changes)


def _text_outcome(file: Path, text: str) -> str:
    try:
        return "unchanged" if file.read_text(encoding="utf-8") == text else "updated"
    except FileNotFoundError:
        return "created"
    except (OSError, ValueError):
        return "updated"


def _folder(asked: Path | None) -> Path:
    return asked or Path(in_pyproject("contracts", FOLDER) or FOLDER)
