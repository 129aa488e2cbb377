"""The private API of nats-py that Outrider uses. Run this first after an upgrade of nats-py.

If a test fails here, compare `nats/aio/client.py` of the new release with the old one, at the place that the test names, and
adapt outrider/streams/nats_private.py. If all pass, run tests/streams and raise the bound in pyproject.toml.
"""

from __future__ import annotations

import ast
import asyncio
import inspect
import tomllib
from importlib.metadata import version
from pathlib import Path
from typing import Any

import nats
import pytest
from nats.aio.client import Client
from nats.aio.subscription import Subscription
from tests.brokers import NatsServer

from outrider.streams.nats_private import RawClient

ROOT = Path(__file__).parents[2]
STREAMS = ROOT / "src/outrider/streams"


def parameters(function: Any) -> list[str]:
    return list(inspect.signature(function).parameters)


def test_the_installed_release_is_one_that_was_checked() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    [bound] = extras["nats"]
    _, upper = bound.removeprefix("nats-py>=").split(",<")
    installed = [int(part) for part in version("nats-py").split(".")[:2]]
    assert installed < [int(part) for part in upper.split(".")], f"nats-py {version('nats-py')} is not below {upper}"


def test_what_we_override_is_still_called_the_same_way() -> None:
    assert parameters(Client._connect_command) == ["self"], "it makes the CONNECT command, which has the password"
    assert not inspect.iscoroutinefunction(Client._connect_command)
    assert parameters(Client._process_msg) == ["self", "sid", "subject", "reply", "data", "headers"], (
        "the parser calls it for every message; sid is the id of the subscription"
    )
    assert inspect.iscoroutinefunction(Client._process_msg)


def test_what_we_call_is_still_there() -> None:
    assert parameters(Client._send_command)[:2] == ["self", "cmd"], "it queues bytes for the server"
    assert inspect.iscoroutinefunction(Client._send_command)
    assert parameters(Client._flush_pending)[0] == "self", "it wakes the task that writes"
    assert "_id" in inspect.getsource(Subscription.__init__), "the id of a subscription, which messages name as sid"


def test_our_own_attributes_hide_none_of_the_library() -> None:
    own = {"_check_server", "_raw_handler", "_raw_subscription"}
    assert not own & set(dir(Client())), "rename those in RawClient"


async def test_the_server_is_checked_before_the_password_is_sent(nats_server: NatsServer) -> None:
    infos: list[dict[str, Any]] = []

    def refuse(info: dict[str, Any]) -> None:
        infos.append(info)
        raise ConnectionError("refused")

    async def failed(error: Exception) -> None:
        raise error

    client = RawClient(refuse)
    with pytest.raises(ConnectionError, match="refused"):
        await client.connect([nats_server.url], allow_reconnect=False, error_cb=failed)
    await client.close()
    assert infos[0]["max_payload"] == 2**20, "the server's INFO is not in Client._server_info"
    assert "tls_required" not in infos[0]


async def test_raw_commands_are_sent_and_raw_messages_arrive(nats_server: NatsServer) -> None:
    client = RawClient(lambda _: None)
    await client.connect([nats_server.url], allow_reconnect=False)
    other = await nats.connect(nats_server.url)
    heard = asyncio.Queue[tuple[bytes, bytes | None, bytes]]()
    await client.subscribe_raw("raw.>", lambda *message: heard.put_nowait(message))
    normal = await client.subscribe("normal")
    headers = b"NATS/1.0\r\nA: b\r\n\r\n"
    raw = b"HPUB raw.1 %d %d\r\n%s12\r\n" % (len(headers), len(headers) + 2, headers)
    await client.send_raw(raw + b"PUB normal 2\r\n34\r\n")
    async with asyncio.timeout(60):
        assert (await normal.next_msg(timeout=30)).data == b"34", "other subscriptions must work as before"
        await other.publish("raw.2", b"56")  # only now: flush() of nats-py can overtake a subscription
        found = [await heard.get(), await heard.get()]
    assert found == [(b"raw.1", headers, b"12"), (b"raw.2", None, b"56")]
    await client.close()
    await other.close()


@pytest.mark.parametrize("module", sorted(path.name for path in STREAMS.glob("*.py") if path.stem != "nats_private"))
def test_no_other_module_uses_private_api(module: str) -> None:
    """An attribute with a leading underscore is ours only on `self`, `cls`, or an instance of a class of the same module."""
    tree = ast.parse((STREAMS / module).read_text())
    own = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute) and _is_self(node.value)}
    own |= {node.name for node in ast.walk(tree) if isinstance(node, ast.AsyncFunctionDef | ast.FunctionDef)}
    foreign = {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and node.attr.startswith("_") and not node.attr.startswith("__")
        if not _is_self(node.value) and node.attr not in own | {"_replace"}
    }
    assert not foreign, f"private API of a library belongs into nats_private.py: {foreign}"


def _is_self(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id in ("self", "cls")
