"""`outrider dashboard` as a process: what it prints, what it refuses, how it ends."""

from __future__ import annotations

import signal
import socket
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
from tests.cli.conftest import Run, Start, outrider, start

from outrider.cli.commands.dashboard import host_names, is_loopback

__all__ = ["outrider", "start"]


def test_it_prints_an_address_that_logs_in_and_ends_with_a_signal(start: Start, database: str) -> None:
    process = start("dashboard", "--dsn", database, "--port", "0")
    assert process.stdout is not None
    address = urlsplit(process.stdout.readline().removeprefix("The dashboard: ").strip())
    given = parse_qs(address.fragment)
    site = f"http://{address.netloc}"
    with httpx.Client(base_url=site, headers={"Origin": site}, timeout=60) as client:
        found = client.post(
            "/login", data={"token": given["token"][0], "name": given["name"][0]}, follow_redirects=True
        )
        assert "No subscription is registered yet" in found.text
        with client.stream("GET", "/live/now") as stream:
            lines = stream.iter_lines()
            next(lines)
            process.send_signal(signal.SIGTERM)
            list(lines)  # an open page does not keep it
    assert process.wait(timeout=200) == 0
    assert process.stderr is not None
    assert process.stderr.read() == ""


def test_the_address_that_it_prints_can_be_opened(start: Start, database: str) -> None:
    process = start("dashboard", "--dsn", database, "--host", "127.8.8.8", "--port", "0")
    assert process.stdout is not None
    address = process.stdout.readline().removeprefix("The dashboard: ").strip()
    assert address.startswith("http://127.8.8.8:")
    assert httpx.get(address, timeout=60).status_code == 200


def test_the_given_address_is_a_host_name_unless_it_means_all() -> None:
    for given, names in (
        ("10.0.0.7", ["10.0.0.7"]), ("fd00:0::7", ["[fd00::7]"]), ("board.example", ["board.example"]),
        ("0.0.0.0", []), ("::", []),
    ):  # fmt: skip
        assert host_names(given) == names


@pytest.mark.parametrize(
    ("arguments", "env", "said"),
    [
        (["--host", "0.0.0.0"], {}, "is not a loopback address"),
        (["--host", "0.0.0.0", "--user-header", "X-User"], {}, "needs the addresses"),
        ([], {"OUTRIDER_DASHBOARD_TOKEN": "short"}, "fewer than 20"),
        (["--enable-actions", "--action", "explode"], {}, "no such action"),
        (["--values-up-to", "everything"], {}, "no such content class"),
        (["--action", "replay"], {}, "--action needs --enable-actions"),
        (["--proxy", "10.0.0.5"], {}, "--proxy needs --user-header"),
    ],
)
def test_what_is_careless_is_refused(
    outrider: Run, database: str, arguments: list[str], env: dict[str, str], said: str
) -> None:
    done = outrider("dashboard", "--dsn", database, *arguments, env=env)
    assert done.returncode != 0
    assert said in " ".join(done.stderr.replace("│", " ").split())


def test_a_port_in_use_is_named_once(outrider: Run, database: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = outrider("dashboard", "--dsn", database, "--port", str(port))
    said = (
        f"outrider: cannot listen on 127.0.0.1, port {port}: Address already in use; choose another port with --port\n"
    )
    assert (done.returncode, done.stderr) == (1, said)


def test_what_loopback_is() -> None:
    assert all(map(is_loopback, ("127.0.0.1", "127.8.8.8", "::1", "localhost")))
    assert not any(map(is_loopback, ("0.0.0.0", "::", "10.0.0.1", "board.example")))
