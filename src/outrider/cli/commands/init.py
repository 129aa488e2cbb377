"""`outrider init`: the files of a new service, which run as they are."""

from __future__ import annotations

import keyword
import os
import re
import shlex
import sys
import tomllib
from enum import StrEnum
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from outrider import names
from outrider.cli.options import Commands
from outrider.cli.output.text import print_json
from outrider.cli.target import JsonOption, SchemaOption
from outrider.cli.templates import fill
from outrider.config import Settings
from outrider.errors import ConfigError
from outrider.postgres.schema.migrate import script

LONGEST = names.IDENTIFIER_BYTES - len(".count_items")
FOLDERS = ("migrations", "tests")
DEFAULT_SCHEMA = "outrider"
RELAYS = {"redis": "REDIS_URL", "nats": "NATS_URL"}
"""The brokers of --relay, and the variable that names the broker's URL."""
PORT = 9464
"""Where the service serves its metrics."""


class RelayTo(StrEnum):
    redis = "redis"
    nats = "nats"


commands = Commands()


@commands.command()
def init(
    service: Annotated[
        str, typer.Option("--service", metavar="NAME", help="Its name, for the package and the context.")
    ],
    out_dir: Annotated[
        Path, typer.Option("--out-dir", metavar="DIR", help="The folder; created if missing.", file_okay=False)
    ] = Path(),
    schema: SchemaOption = None,
    relay: Annotated[
        RelayTo | None,
        typer.Option("--relay", metavar="BROKER", help="Also a relay, with a lease and metrics: redis or nats."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite files that exist.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Write the files of a new service.

    Migrations, an event, a handler, a boot file and a test. The service runs
    as it is, even without a Postgres of yours. If one of the files exists,
    it is named and none is written. An existing pyproject.toml is never changed.
    With [bold]--relay[/] it also sends its events to a stream of that broker, once and in
    order, and serves its metrics on port 9464 (METRICS_PORT).

    Needs: nothing; it connects to no database.

    Examples:

      [bold]outrider init --service billing[/]
      [bold]outrider init --service billing --relay redis[/]
      [bold]outrider init --service billing --out-dir services/billing --schema events[/]
    """
    _refuse_name(service, out_dir)
    settings = Settings.load(context=service, schema=schema, environ=_schema_only())
    written = _files(service, settings.schema, relay)
    there = [name for name in written if (out_dir / name).exists()]
    if there and not force:
        raise ConfigError(
            f"nothing was written, because these exist: {', '.join(there)}; choose another --out-dir or --service, "
            "or overwrite them with --force"
        )
    project = out_dir / "pyproject.toml"
    if not project.exists():
        written[project.name] = fill("pyproject.toml", service=service)
    _write(out_dir, written)
    if as_json:
        print_json(service=service, schema=settings.schema, written=list(written))
    else:
        _tell(service, out_dir, written, project, relay)


def _refuse_name(service: str, out_dir: Path) -> None:
    if wrong := _wrong_name(service, out_dir):
        raise ConfigError(f"--service: {wrong}; this would do: {_similar(service, out_dir)}")


def _wrong_name(service: str, out_dir: Path) -> str | None:
    """The name is used for a package, a context, tables and a subscription."""
    if wrong := names.wrong_word(service):
        return wrong
    if len(service) > LONGEST:
        return f"{service!r} has {len(service)} letters, at most {LONGEST} are allowed"
    if keyword.iskeyword(service) or keyword.issoftkeyword(service):
        return f"{service!r} is a keyword of Python"
    if service in FOLDERS:
        return f"{service!r} is a folder that is written beside it"
    if service in sys.stdlib_module_names or _installed(service, out_dir):
        return f"{service!r} is an existing package, and Python could import the wrong one"
    return None


def _installed(service: str, out_dir: Path) -> bool:
    """Outside the folder: a package inside it may be this very service."""
    found = find_spec(service)
    return found is not None and found.origin is not None and not Path(found.origin).is_relative_to(out_dir.resolve())


def _similar(service: str, out_dir: Path) -> str:
    words = re.findall(r"[a-z]+|[0-9]+", re.sub(r"([a-z0-9])([A-Z])", r"\1_\2", service).lower())
    near = "_".join(words).lstrip("0123456789_")[:LONGEST].rstrip("_") or "billing"
    return near if _wrong_name(near, out_dir) is None else f"{near[: LONGEST - 8]}_service"


def _schema_only() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name == "OUTRIDER_SCHEMA"}


def _files(service: str, schema: str, relay: RelayTo | None) -> dict[str, str]:
    settings = f'context="{service}"' + ("" if schema == DEFAULT_SCHEMA else f', schema="{schema}"')
    return {
        "migrations/0001_outrider.sql": script(schema),
        f"migrations/0002_{service}.sql": fill("tables.sql", service=service),
        f"{service}/__init__.py": "",
        f"{service}/events.py": fill("events.py", service=service),
        f"{service}/app.py": fill("app.py", service=service, settings=settings, **_in_app(service, relay)),
        **({} if relay is None else {f"{service}/relay.py": fill(f"relay_{relay}.py", service=service)}),
        f"{service}/__main__.py": fill("__main__.py", service=service, **_in_boot(relay)),
        f"tests/test_{service}.py": fill("test.py", service=service),
    }


def _in_app(service: str, relay: RelayTo | None) -> dict[str, str]:
    if relay is None:
        return {"relay_import": "", "relay_call": ""}
    return {"relay_import": f"\nfrom {service}.relay import declare_relay", "relay_call": "\ndeclare_relay(app)"}


def _in_boot(relay: RelayTo | None) -> dict[str, str]:
    """A service with a relay also serves metrics."""
    if relay is None:
        return {"os_import": "", "metrics_import": "", "metrics_port": "", "run": "return await worker.run()"}
    return {
        "os_import": "\nimport os",
        "metrics_import": "\nfrom outrider.observe.exposed import exposed",
        "metrics_port": f'METRICS_PORT = int(os.environ.get("METRICS_PORT", "{PORT}"))\n',
        "run": """schema = app.settings.schema
        async with exposed(app, schema, "127.0.0.1", METRICS_PORT) as url:
            logging.getLogger(__name__).info("metrics at %s", url)
            return await worker.run()""",
    }


def _write(out_dir: Path, written: dict[str, str]) -> None:
    try:
        for name in written:  # first, so that obstacles are found before anything is written
            (out_dir / name).parent.mkdir(parents=True, exist_ok=True)
        for name, text in written.items():
            (out_dir / name).write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{error.filename} cannot be written: {error.strerror}; choose another --out-dir") from error


def _tell(service: str, out_dir: Path, written: dict[str, str], project: Path, relay: RelayTo | None) -> None:
    typer.echo(f"wrote in {out_dir.resolve()}:")
    for name in written:
        typer.echo(f"  {name}")
    if project.name not in written and not _names_app(project):
        typer.echo(
            f'add to {project.name}, so that commands find the app:\n  [tool.outrider]\n  app = "{service}.app:app"'
        )
    scripts = " ".join(f"-f {name}" for name in written if name.startswith("migrations/"))
    typer.echo("next:" if out_dir.resolve() == Path.cwd() else f"next, after cd {shlex.quote(str(out_dir))}:")
    if relay is not None:
        typer.echo(f"  pip install 'outrider[{relay},metrics]'".ljust(46) + f"# and a broker; {RELAYS[relay]} names it")
    typer.echo("  python -m pytest                            # the test; needs outrider[embedded] and pytest")
    typer.echo(f"  OUTRIDER_EMBEDDED=1 python -m {service}".ljust(46) + "# the service, on a Postgres of its own")
    typer.echo(f'  psql "$OUTRIDER_DSN" -q -v ON_ERROR_STOP=1 {scripts} && python -m {service}')


def _names_app(project: Path) -> bool:
    try:
        return "app" in tomllib.loads(project.read_text(encoding="utf-8")).get("tool", {}).get("outrider", {})
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, AttributeError):
        return False
