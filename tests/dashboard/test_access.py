"""Without a login nothing is shown; nobody acts without permission; no other site can act in somebody's name."""

from __future__ import annotations

import asyncio
import base64
import time
from typing import Any

import httpx
import psycopg
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.routing import Mount
from tests.dashboard.conftest import TOKEN, Serve, act, log_in
from tests.dashboard.test_verbs import BURY_JOB

from outrider import Outrider
from outrider.dashboard import ACTIONS, Dashboard, Proxy, User, guard, live
from outrider.dashboard.access import Access
from outrider.dashboard.pages import login
from outrider.dashboard.server import serving
from outrider.dashboard.site import DONE, SHOWN
from outrider.errors import ConfigError

EVENT = "01a1dee3-17b7-74fd-a81d-5bd9edeeaa5a"
OPEN = {"/login", "/static/{name}"}


def filled(path: str) -> str:
    return path.replace("{id}", EVENT).replace("{name}", "dash.invoice").replace("{page}", "workers")


async def test_without_a_login_nothing_is_shown(serve: Serve) -> None:
    async with serve(actions=["replay"]) as client:
        for path, _ in SHOWN:
            if path not in OPEN:
                found = await client.get(filled(path))
                assert found.status_code == 303
                assert found.headers["location"].startswith("/login?next=")
                assert not found.content
        assert (await client.get("/live/now")).status_code == 401
        for path, _ in DONE:
            if path != "/login":
                found = await client.post(filled(path), headers={"Origin": str(client.base_url).rstrip("/")})
                assert found.status_code == 401
        assert client.board.poller.looks == 0  # type: ignore[attr-defined]


async def test_a_wrong_token_is_refused_slowly_and_logged(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    assert login.REFUSAL >= 1
    monkeypatch.setattr(login, "REFUSAL", 0.05)
    async with serve() as client:
        headers = {"Origin": str(client.base_url).rstrip("/")}
        for wrong in ("", "wrong", TOKEN + "x", "\u00e9"):
            begun = time.monotonic()
            found = await client.post("/login", data={"token": wrong}, headers=headers)
            assert time.monotonic() - begun >= 0.05
            assert found.status_code == 403
            assert not found.cookies
    told = [each.getMessage() for each in caplog.records if "refused a login" in each.getMessage()]
    assert told == ["the dashboard refused a login from 127.0.0.1: this is not the token"] * 4


async def test_dashboards_on_two_ports_do_not_log_each_other_out(serve: Serve) -> None:
    """Browsers send the cookies of a host to all of its ports."""
    async with serve() as first, serve(token="another token that nobody can guess") as second:
        await log_in(first)
        second.cookies = first.cookies
        headers = {"Origin": str(second.base_url).rstrip("/")}
        await second.post("/login", data={"token": "another token that nobody can guess"}, headers=headers)
        for client in (first, second):
            assert (await client.get("/", headers={"Cookie": cookies_of(first, second)})).status_code == 200
        await second.post("/logout", headers=headers)
        assert (await first.get("/", headers={"Cookie": cookies_of(first, second)})).status_code == 200


def cookies_of(*clients: httpx.AsyncClient) -> str:
    """As a browser sends them, which has one jar."""
    jar = {each.name: each.value for client in clients for each in client.cookies.jar}
    return "; ".join(f"{name}={value}" for name, value in jar.items())


async def test_the_cookie_is_out_of_reach_for_scripts_and_cannot_be_forged(serve: Serve) -> None:
    async with serve() as client:
        found = await client.post(
            "/login", data={"token": TOKEN, "name": "ada"}, headers={"Origin": str(client.base_url).rstrip("/")}
        )
        cookie = found.headers["set-cookie"].lower()
        assert "httponly" in cookie
        assert "samesite=lax" in cookie
        [(name, value)] = client.cookies.items()
        body, _, signature = value.rpartition(".")
        expires, _, _ = body.partition(".")
        other = base64.urlsafe_b64encode(b"eve").decode()
        for forged in (
            f"{expires}.{other}.{signature}",
            f"9{expires}.{body.partition('.')[2]}.{signature}",
            "x",
            "..",
            "",
        ):
            client.cookies.clear()
            assert (await client.get("/", headers={"Cookie": f"{name}={forged}"})).status_code == 303


async def test_a_login_expires(monkeypatch: pytest.MonkeyPatch, serve: Serve) -> None:
    async with serve() as client:
        monkeypatch.setattr("outrider.dashboard.access.SESSION", -1)
        await log_in(client)
        assert (await client.get("/")).status_code == 303


@pytest.mark.parametrize(
    ("after", "leads"),
    [
        ("/jobs?type=x", "/jobs?type=x"),
        ("https://evil.example/", "/"),
        ("//evil.example/", "/"),
        ("/\\evil.example", "/"),
        ("/x\r\nSet-Cookie: a=b", "/"),
    ],
)
async def test_a_login_leads_to_no_other_site(serve: Serve, after: str, leads: str) -> None:
    async with serve() as client:
        headers = {"Origin": str(client.base_url).rstrip("/")}
        found = await client.post("/login", data={"token": TOKEN, "next": after}, headers=headers)
        assert found.headers["location"] == leads


async def test_every_answer_has_strict_headers(serve: Serve) -> None:
    async with serve() as client:
        await log_in(client)
        for path in ("/", "/login", "/nowhere", "/static/dashboard.js", "/event/x"):
            found = await client.get(path)
            policy = found.headers["content-security-policy"]
            assert "default-src 'none'" in policy
            assert "unsafe" not in policy
            assert found.headers["x-content-type-options"] == "nosniff"
            assert found.headers["x-frame-options"] == "DENY"
            assert found.headers["cache-control"] == ("no-cache" if "static" in path else "no-store")


async def test_another_host_name_is_refused(serve: Serve) -> None:
    async with serve() as client:
        await log_in(client)
        for host in ("evil.example", "evil.example:80", "127.0.0.1.evil.example", "127.0.0.1:1@evil.example", ""):
            assert (await client.get("/", headers={"Host": host})).status_code in (400, 421)
    async with serve(hosts=["board.example"]) as client:
        assert (await client.get("/login", headers={"Host": "Board.Example:444"})).status_code == 200


async def test_it_is_read_only_unless_actions_are_enabled(serve: Serve, events: list[str]) -> None:
    async with serve() as client:
        await log_in(client)
        page = (await client.get(f"/event/{events[3]}")).text
        assert "Act on its dead letters" not in page
        found = await act(client, f"/event/{events[3]}/replay", "/", reason="x")
        assert found.status_code == 403
        assert "read-only" in found.text


async def test_one_action_may_be_allowed_and_others_not(serve: Serve, events: list[str]) -> None:
    async with serve(actions=["replay"]) as client:
        await log_in(client)
        assert (await act(client, f"/event/{events[3]}/discard", "/", reason="x")).status_code == 403
        assert (await act(client, "/dead-letters/act", "/", verb="discard", reason="x")).status_code == 403
        assert (await client.get("/dead-letters/act?verb=discard")).status_code == 403
        assert (await act(client, f"/event/{events[3]}/replay", "/", reason="x")).status_code == 200


async def test_to_edit_a_payload_is_a_permission_of_its_own(serve: Serve, dsn: str, events: list[str]) -> None:
    may = {"replay"}
    with psycopg.connect(dsn) as conn:
        conn.execute("select outrider.enqueue('dash.mail', '{\"order_id\": \"o7\"}', queue => 'bulk')")
        [(job,)] = conn.execute(BURY_JOB, ["o7"]).fetchall()
    async with serve(authorize=lambda _: User("eve", may=frozenset(may)), actions=ACTIONS) as client:
        for each, edited in ((events[3], '{"order_id": "3", "total": "1"}'), (job, '{"order_id": "o8"}')):
            page = f"/{'jobs' if each == job else 'event'}/{each}"
            assert "Edit and replay" not in (await client.get(page)).text
            given = {"reason": "x", "payload": edited}
            refused = await act(client, f"/event/{each}/replay", page, **given)
            assert (refused.status_code, "eve may not edit" in refused.text) == (403, True)
            may.clear()
            may.add("edit")
            shown = (await client.get(page)).text
            assert "Edit and replay" in shown
            assert '<button class="main">Replay</button>' not in shown
            assert (await act(client, f"/event/{each}/replay", page, reason="x")).status_code == 403
            assert "replayed" in (await act(client, f"/event/{each}/replay", page, **given)).text
            may.clear()
            may.add("replay")


@pytest.mark.parametrize(
    "origin",
    [None, "null", "https://evil.example", "http://127.0.0.1:1", "http://[::1", "file://{}", "//{}", "http://ada@{}"],
)
async def test_a_form_of_another_site_is_refused(serve: Serve, events: list[str], origin: str | None) -> None:
    async with serve(actions=["replay"]) as client:
        await log_in(client)
        headers = {} if origin is None else {"Origin": origin.format(client.base_url.netloc.decode())}
        token = client.board.access.form_token(User("ada"))  # type: ignore[attr-defined]
        form = {"form_token": token, "reason": "x"}
        found = await client.post(f"/event/{events[3]}/replay", data=form, headers=headers)
        assert found.status_code == 403
        assert "another site" in found.text


async def test_a_form_needs_its_token(serve: Serve, events: list[str]) -> None:
    async with serve(actions=["replay"]) as client:
        await log_in(client)
        headers = {"Origin": str(client.base_url).rstrip("/")}
        for token in ("", "wrong", client.board.access.form_token(User("eve"))):  # type: ignore[attr-defined]
            form = {"form_token": token, "reason": "x"}
            found = await client.post(f"/event/{events[3]}/replay", data=form, headers=headers)
            assert found.status_code == 403
            assert "expired" in found.text


async def test_a_huge_form_is_refused(serve: Serve) -> None:
    async with serve() as client:
        headers = {"Origin": str(client.base_url).rstrip("/"), "Content-Type": "application/x-www-form-urlencoded"}
        found = await client.post("/login", content=b"token=" + b"x" * (5 * 1024 * 1024), headers=headers)
        assert found.status_code == 413


async def test_a_proxy_names_the_user(serve: Serve) -> None:
    async with serve(proxy=Proxy.of("X-Remote-User", ["127.0.0.0/8"])) as client:
        assert (await client.get("/")).status_code == 401
        assert "ada@example" in (await client.get("/", headers={"X-Remote-User": "ada@example"})).text
        twice = [("X-Remote-User", "ada"), ("X-Remote-User", "eve")]
        assert (await client.get("/", headers=twice)).status_code == 401
    async with serve(proxy=Proxy.of("X-Remote-User", ["10.0.0.0/8"])) as client:
        forwarded = {"X-Remote-User": "eve", "X-Forwarded-For": "10.0.0.1"}
        assert (await client.get("/", headers=forwarded)).status_code == 401


@pytest.mark.parametrize("given", ["Jürgen Ångström", "Jürgen", "花子"])
async def test_a_proxy_names_the_user_in_utf_8_or_latin_1(serve: Serve, given: str) -> None:
    async with serve(proxy=Proxy.of("X-Remote-User", ["127.0.0.1"])) as client:
        for encoding in ("utf-8", "latin-1"):
            if encoding == "utf-8" or given.isascii() or max(given) < "\u0100":
                found = await client.get("/", headers={b"X-Remote-User": given.encode(encoding)})
                assert given in found.text, encoding


def test_the_address_of_a_proxy_may_be_mapped_into_ipv6() -> None:
    """A socket of both kinds reports ::ffff:10.0.0.5 for 10.0.0.5."""
    proxy = Proxy.of("X-Remote-User", ["10.0.0.5", "fd00::/8", "::ffff:10.9.0.0/112"])
    for peer, known in (
        ("10.0.0.5", True), ("::ffff:10.0.0.5", True), ("::ffff:10.0.0.6", False), ("fd00::5", True), ("::10.0.0.5", False),
        ("10.9.0.1", True), ("::ffff:10.9.0.1", True), ("10.8.0.1", False),
    ):  # fmt: skip
        scope = {"type": "http", "headers": [(b"x-remote-user", b"ada")], "client": (peer, 1)}
        assert (proxy.user(Request(scope)) is not None) == known, peer


def test_a_user_without_a_name_is_nobody() -> None:
    proxy = Proxy.of("X-Remote-User", ["10.0.0.5"])
    for name in (b"", b" ", "\u00a0".encode()):
        scope = {"type": "http", "headers": [(b"x-remote-user", name)], "client": ("10.0.0.5", 1)}
        assert proxy.user(Request(scope)) is None, name


async def test_an_app_that_mounts_it_decides_who_sees_it(shop: Outrider) -> None:
    async def authorize(request: Request) -> User | None:
        name = request.headers.get("authorization")
        return User(name, may=frozenset({"pause"})) if name else None

    async with (
        Dashboard(shop, authorize=authorize, actions=["pause", "replay"]) as board,
        serving(Starlette(routes=[Mount("/ops/board", board)]), port=0) as address,
        httpx.AsyncClient(base_url=address, headers={"Authorization": "grace"}, timeout=60) as client,
    ):
        found = await client.get("/ops/board/subscriptions")
        assert found.status_code == 200
        assert 'href="/ops/board/static/dashboard.css"' in found.text
        assert 'data-live="/ops/board/live/subscriptions"' in found.text
        assert (await client.get("/ops/board/static/dashboard.css")).status_code == 200
        assert (await client.get("/ops/board/login")).status_code == 404
        page = "/ops/board/subscriptions/dash.search"
        assert "Paused" in (await act(client, f"{page}/pause", page, reason="x")).text
        refused = await act(client, "/ops/board/dead-letters/act", page, verb="replay", reason="x")
        assert refused.status_code == 403
        assert (await client.get("/ops/board/", headers={"Authorization": ""})).status_code == 401


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "exactly one of"),
        ({"token": TOKEN, "authorize": lambda _: None}, "exactly one of"),
        ({"token": "short"}, "fewer than 20 characters"),
        ({"token": TOKEN, "actions": ["explode"]}, "no such action: explode"),
    ],
)
def test_a_careless_configuration_is_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        Access(**options)
    with pytest.raises(ConfigError, match="needs the addresses"):
        Proxy.of("X-Remote-User", [])


async def test_a_form_that_does_not_come_is_given_up(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody has to log in to send one."""
    monkeypatch.setattr(guard, "BODY", 0.2)
    async with serve() as client, asyncio.timeout(20):
        assert client.base_url.port is not None
        reader, writer = await asyncio.open_connection("127.0.0.1", client.base_url.port)
        origin = f"127.0.0.1:{client.base_url.port}"
        head = f"POST /login HTTP/1.1\r\nhost: {origin}\r\norigin: http://{origin}\r\ncontent-length: 10\r\n\r\ntok"
        writer.write(head.encode())
        assert b" 408 " in await reader.read()
        writer.close()


@pytest.mark.parametrize(("scheme", "secure"), [("https", True), ("http", False)])
async def test_the_cookie_of_a_login_over_tls_is_never_sent_without(serve: Serve, scheme: str, secure: bool) -> None:
    """A proxy has ended TLS, so only the browser's Origin tells."""
    async with serve(hosts=["board.example"]) as client:
        headers = {"Host": "board.example", "Origin": f"{scheme}://board.example"}
        found = await client.post("/login", data={"token": TOKEN}, headers=headers)
        assert found.status_code == 303
        assert ("secure" in found.headers["set-cookie"].lower().split("; ")) == secure


async def test_a_live_page_ends_with_the_login(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "LOGGED_IN", 0.0)
    users = {"ada": User("ada")}
    async with (
        serve(authorize=lambda _: users.get("ada")) as client,
        asyncio.timeout(30),
        client.stream("GET", "/live/now") as stream,
    ):
        lines = stream.aiter_lines()
        assert (await anext(lines)).startswith("data: ")
        users.clear()
        async for _ in lines:
            pass
        assert (await client.get("/live/now")).status_code == 401
