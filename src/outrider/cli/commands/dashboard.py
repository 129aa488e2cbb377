"""`outrider dashboard`: serve the dashboard until Ctrl-C."""

from __future__ import annotations

import asyncio
import os
import secrets
from contextlib import AsyncExitStack
from ipaddress import ip_address
from typing import TYPE_CHECKING, Annotated
from urllib.parse import urlencode

import typer

from outrider.app import Outrider
from outrider.cli.commands.contracts import FOLDER
from outrider.cli.options import Commands, who
from outrider.cli.shutdown import leave, obeying
from outrider.cli.target import Location, in_pyproject
from outrider.config import secret_of
from outrider.errors import ConfigError

if TYPE_CHECKING:
    from outrider.dashboard import Dashboard

PORT = 8642
TOKEN = "OUTRIDER_DASHBOARD_TOKEN"  # noqa: S105 (its name)
OPERATOR_DSN = "OUTRIDER_OPERATOR_DSN"

commands = Commands()


@commands.command()
def dashboard(
    location: Location,
    host: Annotated[str, typer.Option("--host", metavar="ADDRESS", help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", metavar="PORT", min=0, max=65535, help="0 = any free port.")] = PORT,
    enable_actions: Annotated[
        bool, typer.Option("--enable-actions", help="Allow replay, edit, discard, withdraw, pause, cancel and run now.")
    ] = False,
    action: Annotated[
        list[str] | None,
        typer.Option("--action", metavar="NAME", help="With --enable-actions: only this one. Repeatable."),
    ] = None,
    allow_host: Annotated[
        list[str] | None,
        typer.Option("--allow-host", metavar="NAME", help="A host name under which browsers reach it. Repeatable."),
    ] = None,
    values_up_to: Annotated[
        str,
        typer.Option(
            "--values-up-to",
            metavar="CLASS",
            help="Show the values in payloads up to this content class: public, internal, confidential, restricted.",
        ),
    ] = "internal",
    user_header: Annotated[
        str | None,
        typer.Option(
            "--user-header", metavar="NAME", help="The header in which a proxy names the user; needs --proxy."
        ),
    ] = None,
    proxy: Annotated[
        list[str] | None,
        typer.Option("--proxy", metavar="ADDRESS", help="The address or network of that proxy. Repeatable."),
    ] = None,
) -> None:
    """Show everything in a browser, live.

    Prints an address to open. It contains a token, which is new at every start;
    set OUTRIDER_DASHBOARD_TOKEN, or the file OUTRIDER_DASHBOARD_TOKEN_FILE, to keep
    one. On another address than loopback, one of these or --user-header is required.

    It reads with the database of the other commands, in read-only sessions whose
    statements end after 3 s. It acts with OUTRIDER_OPERATOR_DSN, if that is set.

    Needs: [bold]pip install 'outrider\\[dashboard]'[/]; a role that may read the
    schema, such as outrider_dashboard; for actions one such as outrider_operator.

    Examples:

      [bold]outrider dashboard --app shop:app[/]
      [bold]outrider dashboard --dsn postgresql://ada@db/shop --enable-actions[/]
    """
    try:
        from outrider.dashboard import ACTIONS, Dashboard
        from outrider.dashboard.access import LOOPBACK, Proxy
    except ImportError as error:
        raise ConfigError(f"the dashboard needs more packages: pip install 'outrider[dashboard]' ({error})") from error
    if action and not enable_actions:
        raise typer.BadParameter("--action needs --enable-actions")
    if proxy and not user_header:
        raise typer.BadParameter("--proxy needs --user-header")
    token = secret_of(os.environ, TOKEN)
    if not is_loopback(host) and token is None and user_header is None:
        raise ConfigError(f"{host} is not a loopback address: set {TOKEN}, or give --user-header and --proxy")
    trusted = Proxy.of(user_header, proxy or ()) if user_header else None
    settings = location.settings
    app = location.app or Outrider(dsn=settings.dsn, embedded=settings.embedded, schema=settings.schema)
    if location.app is not None:
        app.relocate(settings)
    board = Dashboard(
        app,
        token=None if trusted else token or secrets.token_urlsafe(24),
        proxy=trusted,
        hosts=[*LOOPBACK, *host_names(host), *(allow_host or ())],
        actions=(action or ACTIONS) if enable_actions else (),
        values_up_to=values_up_to,
        operator_dsn=secret_of(os.environ, OPERATOR_DSN),
        contracts=in_pyproject("contracts", FOLDER) or FOLDER,
    )
    asyncio.run(_serve(app, board, host, port, shows_token=token is None))


def is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def host_names(host: str) -> list[str]:
    """The name in requests to this address; none for all addresses."""
    try:
        address = ip_address(host)
    except ValueError:
        return [host]
    if address.is_unspecified:
        return []
    return [f"[{address}]" if address.version == 6 else str(address)]


async def _serve(app: Outrider, board: Dashboard, host: str, port: int, *, shows_token: bool) -> None:
    from outrider.dashboard.server import serving

    stop = asyncio.Event()
    async with AsyncExitStack() as stack:
        if app.settings.embedded:
            await stack.enter_async_context(app)
        await stack.enter_async_context(board)
        address = await stack.enter_async_context(serving(board, host, port))
        stack.enter_context(obeying(stop.set, leave))
        typer.echo(f"The dashboard: {login_address(address, board, shows_token=shows_token)}\nCtrl-C ends it.")
        await stop.wait()


def login_address(address: str, board: Dashboard, *, shows_token: bool) -> str:
    """With the token in the fragment, which browsers do not send."""
    if not shows_token or board.access.token is None:
        return f"{address}/"
    return f"{address}/login#{urlencode({'name': who(None), 'token': board.access.token})}"
