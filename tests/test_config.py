"""Settings: argument before environment before default, and every error names its setting."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from outrider.config import Settings
from outrider.errors import ConfigError


def load(environ: dict[str, str] | None = None, **arguments: Any) -> Settings:
    return Settings.load(environ=environ or {}, **arguments)


def test_defaults() -> None:
    assert load() == Settings(
        context="default",
        contexts=None,
        dsn=None,
        embedded=False,
        schema="outrider",
        generation=0,
        payload_limit=256 * 1024,
        pool_size=4,
    )


@pytest.mark.parametrize(
    ("name", "variable", "text", "from_environment", "argument"),
    [
        ("context", "OUTRIDER_CONTEXT", "shop", "shop", "billing"),
        ("dsn", "OUTRIDER_DSN", "host=a", "host=a", "host=b"),
        ("schema", "OUTRIDER_SCHEMA", "events", "events", "log"),
        ("generation", "OUTRIDER_GENERATION", " 7 ", 7, 0),
        ("payload_limit", "OUTRIDER_PAYLOAD_LIMIT", "2048", 2048, 1024),
        ("pool_size", "OUTRIDER_POOL_SIZE", "9", 9, 1),
        ("embedded", "OUTRIDER_EMBEDDED", "1", True, False),
    ],
)
def test_argument_before_environment_before_default(
    name: str, variable: str, text: str, from_environment: object, argument: object
) -> None:
    default = getattr(load(), name)
    assert default not in (from_environment, argument) or default == argument
    assert getattr(load({variable: text}), name) == from_environment
    assert getattr(load({variable: text}, **{name: argument}), name) == argument
    assert getattr(load({variable: ""}), name) == default


def test_the_environment_of_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUTRIDER_CONTEXT", "shop")
    assert Settings.load().context == "shop"


@pytest.mark.parametrize("text", ["1", "true", "YES", " on "])
def test_true(text: str) -> None:
    assert load({"OUTRIDER_EMBEDDED": text}).embedded


@pytest.mark.parametrize("text", ["", "0", "false", "No", "off"])
def test_false(text: str) -> None:
    assert not load({"OUTRIDER_EMBEDDED": text}).embedded


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        ({"OUTRIDER_EMBEDDED": "maybe"}, r"OUTRIDER_EMBEDDED='maybe' is neither true \(1, yes, on\) nor false"),
        ({"OUTRIDER_GENERATION": "three"}, "OUTRIDER_GENERATION='three' is not a whole number"),
        ({"OUTRIDER_PAYLOAD_LIMIT": "1.5"}, "OUTRIDER_PAYLOAD_LIMIT='1.5' is not a whole number"),
        ({"OUTRIDER_POOL_SIZE": "0x1"}, "OUTRIDER_POOL_SIZE='0x1' is not a whole number"),
        ({"OUTRIDER_POOL_SIZE": "0"}, "pool_size: 0 is not at least 1"),
        ({"OUTRIDER_CONTEXT": "My Shop"}, "context: 'My Shop' is not a lower-case word"),
    ],
)
def test_a_wrong_environment_names_the_variable(environ: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load(environ)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"context": "Shop"}, "context: 'Shop' is not a lower-case word"),
        ({"context": "a" * 64}, "context: has 64 bytes, at most 63"),
        ({"context": "outrider"}, "context: 'outrider' is the context of Outrider's own events: choose another name"),
        ({"schema": 'a"b'}, "schema: 'a\"b' is not a lower-case word"),
        ({"schema": "a; drop table"}, "schema: 'a; drop table' is not a lower-case word"),
        ({"schema": "pg_outrider"}, "schema: Postgres reserves names that begin with pg_"),
        ({"contexts": frozenset({"shop", "Billing"})}, "contexts: 'Billing' is not a lower-case word"),
        ({"dsn": "host=a", "embedded": True}, "embedded and dsn exclude each other: drop one of them"),
        ({"generation": -1}, "generation: -1 is not between 0 and"),
        ({"generation": 2**63}, "generation: 9223372036854775808 is not between 0 and"),
        ({"payload_limit": 1023}, "payload_limit: 1023 is not between 1,024 and 67,108,864 bytes"),
        ({"payload_limit": 64 * 1024 * 1024 + 1}, "payload_limit: 67108865 is not between"),
        ({"pool_size": 0}, "pool_size: 0 is not at least 1"),
    ],
)
def test_a_wrong_argument_names_the_setting(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load(**arguments)


@pytest.mark.parametrize(
    "arguments",
    [{"generation": 2**63 - 1}, {"payload_limit": 1024}, {"payload_limit": 64 * 1024 * 1024}, {"pool_size": 1}],
)
def test_the_borders_are_allowed(arguments: dict[str, Any]) -> None:
    [(name, value)] = arguments.items()
    assert getattr(load(**arguments), name) == value


@pytest.mark.parametrize(
    ("environ", "arguments", "dsn", "embedded"),
    [
        ({"OUTRIDER_DSN": "host=a"}, {"embedded": True}, None, True),
        ({"OUTRIDER_EMBEDDED": "1"}, {"dsn": "host=b"}, "host=b", False),
        ({"OUTRIDER_EMBEDDED": "1", "OUTRIDER_DSN": "host=a"}, {"embedded": False}, "host=a", False),
        ({"OUTRIDER_EMBEDDED": "1", "OUTRIDER_DSN": "host=a"}, {"dsn": "host=b"}, "host=b", False),
    ],
)
def test_an_argument_decides_between_embedded_and_dsn(
    environ: dict[str, str], arguments: dict[str, Any], dsn: str | None, embedded: bool
) -> None:
    settings = load(environ, **arguments)
    assert (settings.dsn, settings.embedded) == (dsn, embedded)


def test_an_environment_with_both_is_refused() -> None:
    with pytest.raises(ConfigError, match="OUTRIDER_EMBEDDED and OUTRIDER_DSN exclude each other"):
        load({"OUTRIDER_EMBEDDED": "1", "OUTRIDER_DSN": "host=a"})


def test_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        load().schema = "other"  # type: ignore[misc]


@pytest.mark.parametrize("name", ["dsn", "listen_dsn"])
def test_a_dsn_in_a_file(name: str, tmp_path: Path) -> None:
    """As secrets are mounted. What is wrong with the file is said, what is in it is not."""
    file, variable = tmp_path / "dsn", f"OUTRIDER_{name.upper()}"
    file.write_text("postgresql://shop:hunter2@db/shop\n")
    from_file = {f"{variable}_FILE": str(file)}
    assert getattr(load(from_file), name) == "postgresql://shop:hunter2@db/shop"
    assert getattr(load(from_file, **{name: "host=b"}), name) == "host=b"
    with pytest.raises(ConfigError, match=f"{variable} and {variable}_FILE exclude each other"):
        load(from_file | {variable: "host=a"})
    for content, sentence in ((b"", "is empty"), (b"hunter2\xff", "not UTF-8"), (None, "No such file")):
        file.unlink()
        if content is not None:
            file.write_bytes(content)
        with pytest.raises(ConfigError, match=sentence) as refused:
            load(from_file)
        assert "hunter2" not in str(refused.value)
        file.touch()


def test_the_dsn_is_not_shown_because_it_may_hold_a_password() -> None:
    assert "hunter2" not in repr(load(dsn="postgresql://shop:hunter2@db/shop"))
