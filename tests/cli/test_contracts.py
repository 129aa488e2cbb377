"""`outrider contracts`: options, files, exit codes. What it says of each break: tests/docs/test_contracts.py.

In this process, but for the tests that ask for `process`.
"""

from __future__ import annotations

import errno
import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from tests.cli import inprocess
from tests.cli.conftest import Run, Start

from outrider.contract import snapshots
from outrider.errors import ConfigError

SHOP = """
from outrider import Event, HandlerContext, Outrider

class Placed(Event, type="orders.placed", key="order_id"):
    order_id: str
    total: int

app = Outrider(context="shop")

@app.handler(Placed, name="shop.invoice")
async def invoice(event: Placed, ctx: HandlerContext) -> None: ...
"""
BILLING = """
from outrider import Event, HandlerContext, Outrider

class Order(Event, type="orders.placed", foreign=True):
    total: int

class Paid(Event, type="billing.paid"):
    order_id: str

app = Outrider(context="billing")

@app.handler(Order, name="billing.charge")
async def charge(event: Order, ctx: HandlerContext) -> None: ...
"""


@pytest.fixture(autouse=True)
def project(tmp_path: Path) -> Path:
    (tmp_path / "shop.py").write_text(SHOP)
    (tmp_path / "billing.py").write_text(BILLING)
    return tmp_path


@pytest.fixture
def outrider(project: Path) -> Run:
    return lambda *arguments: inprocess.run(project, *arguments)


@pytest.fixture
def process(start: Start) -> Run:
    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        process = start(*arguments)
        out, err = process.communicate(timeout=200)
        return subprocess.CompletedProcess(arguments, process.returncode, out, err)

    return run


def change(file: Path, old: str, new: str) -> None:
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))


def meta(file: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(file.read_text())["x-outrider"]
    return found


@pytest.mark.verify
def test_snapshots_of_several_contexts(process: Run, outrider: Run, project: Path) -> None:
    done = process("contracts", "snapshot", "--app", "shop:app", "--app", "billing:app")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [
        "created    contracts/billing.paid.v1.json",
        "created    contracts/orders.placed.v1.json",
    ]
    contracts = project / "contracts"
    assert sorted(path.name for path in contracts.iterdir()) == ["billing.paid.v1.json", "orders.placed.v1.json"]
    assert meta(contracts / "billing.paid.v1.json")["producer"] == "billing"
    assert meta(contracts / "orders.placed.v1.json") == {
        "type": "orders.placed",
        "version": 1,
        "key": "order_id",
        "producer": "shop",
        "deprecated_after": None,
    }
    again = outrider("contracts", "snapshot", "--app", "shop:app", "--app", "billing:app")
    assert [line.split()[0] for line in again.stdout.splitlines()] == ["unchanged", "unchanged"]


def test_the_app_and_the_folder_of_pyproject(outrider: Run, project: Path) -> None:
    (project / "pyproject.toml").write_text('[tool.outrider]\napp = "shop:app"\ncontracts = "schemas/events"\n')
    assert outrider("contracts", "snapshot").stdout == "created    schemas/events/orders.placed.v1.json\n"
    assert outrider("contracts", "check").returncode == 0
    assert outrider("contracts", "check", "--dir", "elsewhere").returncode == 1
    assert outrider("contracts", "check", "--app", "billing:app").returncode == 1


def test_two_folders_that_promise_different_things(outrider: Run, project: Path) -> None:
    """Which of them counts must not depend on the order of the options."""
    outrider("contracts", "snapshot", "--app", "shop:app", "--dir", "there")
    (project / "copy").mkdir()
    snapshot = (project / "there" / "orders.placed.v1.json").read_text()
    command = ["contracts", "check", "--app", "billing:app", "--dir", "here", "--against", "there", "--against", "copy"]
    (project / "copy" / "orders.placed.v1.json").write_text(snapshot)
    assert "differ under the same name" not in outrider(*command).stderr
    (project / "copy" / "orders.placed.v1.json").write_text(snapshot.replace('"shop"', '"another"'))
    assert (
        "there/orders.placed.v1.json and copy/orders.placed.v1.json differ under the same name"
        in outrider(*command).stderr
    )


def test_a_view_against_the_folder_of_another_repository(outrider: Run, project: Path) -> None:
    outrider("contracts", "snapshot", "--app", "shop:app", "--dir", "there")
    outrider("contracts", "snapshot", "--app", "billing:app", "--dir", "here")
    alone = outrider("contracts", "check", "--app", "billing:app", "--dir", "here")
    assert (alone.returncode, "--against" in alone.stdout) == (1, True)
    assert outrider("contracts", "check", "--app", "billing:app", "--dir", "here", "--against", "there").returncode == 0
    (project / "here" / "orders.placed.v1.json").write_text((project / "there" / "orders.placed.v1.json").read_text())
    assert outrider("contracts", "check", "--app", "billing:app", "--dir", "here").returncode == 0, (
        "a copy does as well"
    )


def test_a_break_is_refused_unless_it_is_forced(outrider: Run, project: Path) -> None:
    outrider("contracts", "snapshot", "--app", "shop:app")
    file = project / "contracts" / "orders.placed.v1.json"
    before = file.read_text()
    change(project / "shop.py", "total: int", "total: str")
    refused = outrider("contracts", "snapshot", "--app", "shop:app")
    assert (refused.returncode, file.read_text()) == (1, before)
    assert "total: was whole number, is text" in refused.stdout
    assert outrider("contracts", "check", "--app", "shop:app").returncode == 1
    forced = outrider("contracts", "snapshot", "--app", "shop:app", "--force")
    assert (forced.returncode, forced.stdout.split()[0]) == (0, "updated")
    assert outrider("contracts", "check", "--app", "shop:app").returncode == 0


def test_one_refusal_does_not_hold_up_the_others(outrider: Run, project: Path) -> None:
    outrider("contracts", "snapshot", "--app", "shop:app")
    change(project / "shop.py", "total: int", "total: str")
    done = outrider("contracts", "snapshot", "--app", "shop:app", "--app", "billing:app")
    assert done.returncode == 1
    assert (project / "contracts" / "billing.paid.v1.json").exists()


def test_a_text_is_refreshed_without_being_asked_for(outrider: Run, project: Path) -> None:
    outrider("contracts", "snapshot", "--app", "shop:app")
    change(project / "shop.py", "    order_id: str\n", '    """An order."""\n\n    order_id: str\n')
    assert outrider("contracts", "check", "--app", "shop:app").returncode == 0
    assert outrider("contracts", "snapshot", "--app", "shop:app").stdout.startswith("updated ")
    assert json.loads((project / "contracts" / "orders.placed.v1.json").read_text())["description"] == "An order."


def test_a_write_that_fails_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "contracts" / "orders.placed.v1.json"
    snapshots.write(file, "old")
    file.chmod(0o664)
    snapshots.write(file, "new")
    assert (file.read_text(), file.stat().st_mode & 0o777) == ("new", 0o664)

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ConfigError, match=r"orders.placed.v1.json cannot be written: No space left on device"):
        snapshots.write(file, "newer")
    assert file.read_text() == "new"
    assert [path.name for path in file.parent.iterdir()] == [file.name]


def test_the_report_as_json(outrider: Run, project: Path) -> None:
    missing = json.loads(outrider("contracts", "check", "--app", "shop:app", "--json").stdout)
    assert (missing["ok"], missing["findings"][0]["kind"]) == (False, "no_snapshot")
    written = json.loads(outrider("contracts", "snapshot", "--app", "shop:app", "--json").stdout)
    assert written == {
        "folder": "contracts",
        "snapshots": [
            {"file": "contracts/orders.placed.v1.json", "outcome": "created", "changes": [], "why": None},
        ],
    }
    done = outrider("contracts", "check", "--app", "shop:app", "--json")
    assert json.loads(done.stdout) == {"ok": True, "published": 1, "views": 0, "past": 0, "findings": []}
    change(project / "shop.py", "total: int", "total: str")
    broken = outrider("contracts", "check", "--app", "shop:app", "--json")
    [finding] = json.loads(broken.stdout)["findings"]
    assert (broken.returncode, finding["kind"], finding["fails"]) == (1, "breaking", True)
    refused = json.loads(outrider("contracts", "snapshot", "--app", "shop:app", "--json").stdout)
    assert refused["snapshots"][0]["changes"][0]["says"] == "total: was whole number, is text"


def test_other_files_in_the_folder_are_left_alone(outrider: Run, project: Path) -> None:
    outrider("contracts", "snapshot", "--app", "shop:app")
    for name in ("notes.json", "README.md", ".hidden", "Orders.v1.json", "orders.placed.v0.json"):
        (project / "contracts" / name).write_text("what they like")
    assert outrider("contracts", "check", "--app", "shop:app").returncode == 0


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"\xff\xfe", "cannot be read: 'utf-8' codec can't decode"),
        (b"{", "cannot be read: it is not JSON"),
        (b"{}", "it is no snapshot of an event"),
        (b'{"x-outrider": {"type": "orders.other", "version": 1}, "type": "object"}',
         "it is the snapshot of orders.other version 1, under a wrong name"),
    ],
)  # fmt: skip
def test_a_file_that_is_no_snapshot(outrider: Run, project: Path, content: bytes, why: str) -> None:
    file = project / "contracts" / "orders.placed.v1.json"
    file.parent.mkdir()
    file.write_bytes(content)
    done = outrider("contracts", "check", "--app", "shop:app")
    assert (done.returncode, done.stderr) == (1, "")
    assert why in done.stdout
    assert outrider("contracts", "snapshot", "--app", "shop:app").returncode == 1
    assert file.read_bytes() == content
    against = outrider("contracts", "check", "--app", "billing:app", "--against", "contracts", "--dir", "none")
    assert "fix: correct it where it comes from" in against.stdout


def test_deprecations_by_the_day(outrider: Run, project: Path) -> None:
    change(project / "shop.py", 'key="order_id"', 'key="order_id", deprecated_after="2027-01-31"')
    outrider("contracts", "snapshot", "--app", "shop:app")
    check = ("contracts", "check", "--app", "shop:app", "--today")
    assert outrider(*check, "2027-01-31").returncode == 0
    late = outrider(*check, "2027-02-01")
    assert (late.returncode, "known readers: shop.invoice" in late.stdout) == (1, True)
    assert outrider(*check, "tomorrow").returncode == 2


def test_the_catalogue(outrider: Run, project: Path) -> None:
    apps = ("--app", "shop:app", "--app", "billing:app")
    assert outrider("contracts", "docs", *apps).stdout == "created    contracts/README.md\n"
    page = (project / "contracts" / "README.md").read_text()
    assert "| [orders.placed](#ordersplaced) | 1 | **shop** | billing, shop |" in page
    assert "- `billing.charge` of billing, as `billing.Order` (a view of version 1: `total`)" in page
    assert outrider("contracts", "docs", *apps).stdout == "unchanged  contracts/README.md\n"
    assert outrider("contracts", "docs", *apps, "--out", "-").stdout == page
    assert outrider("contracts", "docs", *apps, "--out", "docs/events.md").stdout == "created    docs/events.md\n"
    assert outrider("contracts", "check", *apps).returncode == 1, "docs are no snapshots"


def test_the_catalogue_overwrites_no_page_but_its_own(outrider: Run, project: Path) -> None:
    page = project / "events.md"
    docs = ("contracts", "docs", "--app", "shop:app", "--out", "events.md")
    for written in (b"# Our events\n\nBy hand.\n", b"# Events\n\nBy hand.\n", b"\xff\xfe"):
        page.write_bytes(written)
        done = outrider(*docs)
        assert (done.returncode, page.read_bytes()) == (1, written)
        assert done.stderr == (
            "outrider: events.md was not written by outrider contracts docs: name another file with --out, "
            "or overwrite it with --force\n"
        )
    assert outrider(*docs, "--force").stdout == "updated    events.md\n"
    change(project / "shop.py", "total: int", "amount: int")
    assert outrider(*docs).stdout == "updated    events.md\n"


def test_a_default_is_remembered_as_no_reason_to_do_without_the_field(outrider: Run, project: Path) -> None:
    apps = ("--app", "shop:app", "--app", "billing:app")
    outrider("contracts", "snapshot", *apps)
    change(project / "shop.py", "total: int", "total: int = 0\n    note: str = ''")
    done = outrider("contracts", "snapshot", *apps)
    assert "note: is new and optional, text (breaks nobody)" in done.stdout
    assert "total" not in done.stdout
    assert outrider("contracts", "check", *apps).returncode == 0, "billing requires the total"
    assert outrider("contracts", "snapshot", *apps).stdout.count("unchanged") == 2
    change(project / "billing.py", "total: int", "total: int\n    note: str")
    assert "note: is required, but some events lack it" in outrider("contracts", "check", *apps).stdout


def test_a_context_that_was_renamed_when_its_event_was_dropped(outrider: Run, project: Path) -> None:
    outrider("contracts", "snapshot", "--app", "shop:app")
    (project / "shop.py").write_text("from outrider import Outrider\napp = Outrider(context='store')\n")
    done = outrider("contracts", "check", "--app", "shop:app")
    assert "orders.placed version 1 (contracts/orders.placed.v1.json)" in done.stdout
    assert "warning: nobody here publishes or reads it" in done.stdout
    assert done.stdout.endswith("all hold, 1 warning\n")


EVENTS = "from outrider import Event\n\nclass {name}(Event, type='{type}'):\n    a: int\n"


def app_file(context: str, *imports: str) -> str:
    return f"from outrider import Outrider\nimport {', '.join(imports)}\napp = Outrider(context='{context}')\n"


def in_packages(project: Path) -> tuple[str, str]:
    for name, other in (("bills", "orders"), ("orders", "bills")):
        (project / name).mkdir()
        (project / name / "__init__.py").touch()
        (project / name / "events.py").write_text(EVENTS.format(name=name.title(), type=f"{name}.made"))
        (project / name / "app.py").write_text(app_file(name, f"{other}.events", f"{name}.events"))
    return "bills.app:app", "orders.app:app"


def side_by_side(project: Path) -> tuple[str, str]:
    """No folder tells whose events they are."""
    for name, other in (("bills", "orders"), ("orders", "bills")):
        (project / f"{name}_events.py").write_text(EVENTS.format(name=name.title(), type=f"{name}.made"))
        (project / f"{name}.py").write_text(app_file(name, f"{name}_events"))
        (project / f"{name}_all.py").write_text(app_file(name, f"{name}_events", f"{other}_events"))
    return "bills:app", "orders:app"


def test_the_producer_is_the_app_in_whose_package_the_event_is(outrider: Run, project: Path) -> None:
    one, other = in_packages(project)
    for apps in ((one, other), (other, one)):
        outrider("contracts", "snapshot", *(f"--app={each}" for each in apps))
        for name in ("bills", "orders"):
            file = project / "contracts" / f"{name}.made.v1.json"
            assert meta(file)["producer"] == name
            file.unlink()


def test_apps_of_one_package(outrider: Run, project: Path) -> None:
    (project / "all").mkdir()
    for name in ("shop", "billing"):
        (project / f"{name}.py").rename(project / "all" / f"{name}.py")
    for apps in (("all.shop:app", "all.billing:app"), ("all.billing:app", "all.shop:app")):
        outrider("contracts", "snapshot", *(f"--app={each}" for each in apps))
        for name, producer in (("orders.placed", "shop"), ("billing.paid", "billing")):
            file = project / "contracts" / f"{name}.v1.json"
            assert meta(file)["producer"] == producer
            file.unlink()


def test_else_the_producer_is_the_one_that_the_snapshot_names(outrider: Run, project: Path) -> None:
    one, other = side_by_side(project)
    outrider("contracts", "snapshot", "--app", one)
    outrider("contracts", "snapshot", "--app", other)
    for apps in ([one], [other], [one, other], [other, one], ["orders_all:app"], ["orders_all:app", one]):
        done = outrider("contracts", "snapshot", *(f"--app={each}" for each in apps))
        assert {line.split()[0] for line in done.stdout.splitlines()} == {"unchanged"}, apps
        assert outrider("contracts", "check", *(f"--app={each}" for each in apps)).returncode == 0, apps


def test_an_app_in_a_package_of_another(outrider: Run, project: Path) -> None:
    (project / "all" / "inner").mkdir(parents=True)
    (project / "all" / "inner" / "events.py").write_text(EVENTS.format(name="Made", type="inner.made"))
    (project / "all" / "inner" / "app.py").write_text(app_file("inner", "all.inner.events"))
    (project / "all" / "app.py").write_text(app_file("outer", "all.inner.events"))
    outer, inner = "--app=all.app:app", "--app=all.inner.app:app"
    outrider("contracts", "snapshot", outer, inner)
    assert meta(project / "contracts" / "inner.made.v1.json")["producer"] == "inner"
    for apps in ([outer], [inner], [inner, outer], [outer, inner]):
        assert outrider("contracts", "check", *apps).returncode == 0, apps


@pytest.mark.parametrize("named", ["option", "pyproject"])
def test_a_context_that_was_renamed(outrider: Run, project: Path, named: str) -> None:
    apps = ["--app", "shop:app"] if named == "option" else []
    if not apps:
        (project / "pyproject.toml").write_text('[tool.outrider]\napp = "shop:app"\n')
    outrider("contracts", "snapshot", *apps)
    change(project / "shop.py", 'context="shop"', 'context="store"')
    assert "the producer: was shop, is store (breaks nobody)" in outrider("contracts", "check", *apps).stdout
    outrider("contracts", "snapshot", *apps)
    assert meta(project / "contracts" / "orders.placed.v1.json")["producer"] == "store"


def test_an_app_without_events(outrider: Run, project: Path) -> None:
    (project / "empty.py").write_text("from outrider import Outrider\napp = Outrider()\n")
    assert "publishes no event" in outrider("contracts", "snapshot", "--app", "empty:app").stdout
    done = outrider("contracts", "check", "--app", "empty:app")
    assert (done.returncode, done.stdout) == (0, "0 contracts (0 published, 0 views): all hold\n")


@pytest.mark.verify
def test_an_app_that_lost_its_only_event(process: Run, outrider: Run, project: Path) -> None:
    outrider("contracts", "snapshot", "--app", "shop:app")
    (project / "shop.py").write_text("from outrider import Outrider\napp = Outrider(context='shop')\n")
    done = process("contracts", "check", "--app", "shop:app")
    assert (done.returncode, "has no class any more" in done.stdout) == (1, True)


@pytest.mark.verify
def test_the_events_of_outrider_itself_are_nobodys(process: Run, project: Path) -> None:
    change(
        project / "shop.py", "from outrider import", "import outrider.demo.shop, outrider.testing\nfrom outrider import"
    )
    done = process("contracts", "snapshot", "--app", "shop:app")
    assert done.stdout == "created    contracts/orders.placed.v1.json\n"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["check"], "no app: name it with --app module:app, in OUTRIDER_APP"),
        (["check", "--app", "nowhere:app"], "names the module 'nowhere'"),
        (["check", "--app", "shop:app", "--dir", "shop.py"], "shop.py is not a folder"),
        (["check", "--app", "shop:app", "--against", "nowhere"], "--against names nowhere, which does not exist"),
        (["snapshot", "--app", "odd:app"], "odd.Odd has no contract: "),
    ],
)
def test_errors(outrider: Run, project: Path, arguments: list[str], said: str) -> None:
    (project / "odd.py").write_text(
        "from collections.abc import Callable\nfrom outrider import Event, Outrider\n"
        "class Odd(Event, type='odd.odd'):\n    it: Callable[[], int]\napp = Outrider()\n"
    )
    done = outrider("contracts", *arguments)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1), done.stderr
    assert said in done.stderr


@pytest.mark.verify
def test_a_folder_that_is_no_text(process: Run, project: Path) -> None:
    (project / "pyproject.toml").write_text('[tool.outrider]\napp = "shop:app"\ncontracts = 7\n')
    assert 'write it like contracts = "contracts"' in process("contracts", "check").stderr


@pytest.mark.parametrize("command", ["snapshot", "check", "docs"])
def test_help_teaches(outrider: Run, command: str) -> None:
    done = outrider("contracts", command, "--help")
    assert (done.returncode, done.stderr) == (0, "")
    for taught in ("Needs:", "Example", f"outrider contracts {command}"):
        assert taught in done.stdout
    assert "\x1b" not in done.stdout
    assert re.search(rf"^.*\b{command}\b", outrider("contracts", "--help").stdout, re.MULTILINE)
