"""The verdict on a failed attempt, and the words for it: whatever the error does, both come out fit to store."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any, NoReturn

import psycopg
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from psycopg import errors as pg
from pydantic import BaseModel, ValidationError

from outrider import names
from outrider.error_text import code_of, describe, keep_frames, last_frames, sqlstate
from outrider.errors import ConfigError, TerminalError, Undecodable
from outrider.outcome import (
    SHORTEST_SNOOZE,
    Bury,
    Classifier,
    Dead,
    Infrastructure,
    Later,
    Retry,
    Snooze,
    Verdict,
    classify,
)
from outrider.redaction import CUT, MESSAGE_BYTES, sanitise
from outrider.retry import Backoff, Policy, RetryPolicy

TABLE = Backoff.table("10s", "20s")
TEN = timedelta(seconds=10)

any_text = st.text(alphabet=st.characters(codec=None)) | st.text(alphabet="\x00\x1b\u202e\ud800\n\t\\xé€😀a")


class PaymentDeclined(Exception):
    pass


class HTTPError2Go(Exception):
    pass


class Shop:
    class _SoldOut(Exception):
        pass


class Model(BaseModel):
    number: int


class Wrapped(Exception):
    """As SQLAlchemy wraps: the driver's error is in `orig`."""

    def __init__(self, orig: object) -> None:
        super().__init__("wrapped")
        self.orig = orig


class OldDriver(Exception):
    pgcode = "23505"


class OperationalError(Exception):
    """As every driver, SQLAlchemy and Django name it."""


class Disconnected(OperationalError):
    pass


class InterfaceError(Exception):
    pass


def invalid() -> ValidationError:
    with pytest.raises(ValidationError) as caught:
        Model(number="many")
    return caught.value


def raised_from(error: BaseException, cause: BaseException | None) -> BaseException:
    error.__cause__ = cause
    return error


def with_state(state: object) -> BaseException:
    error = PaymentDeclined("no")
    error.sqlstate = state  # type: ignore[attr-defined]
    return error


def judge(error: BaseException, attempt: int = 1, policy: Policy = TABLE, *, ours: bool = False) -> Verdict:
    return classify(error, attempt, policy, 0.5, ours=ours)


@pytest.mark.parametrize(
    ("error", "verdict"),
    [
        (Snooze("5m", "not yet"), Later(timedelta(minutes=5), "snooze", "Snooze: not yet", counted=False)),
        (Snooze(for_=0), Later(SHORTEST_SNOOZE, "snooze", "Snooze", counted=False)),
        (Retry(), Later(TEN, "retry", "Retry", counted=True)),
        (Retry(after="1h", reason="busy"), Later(timedelta(hours=1), "retry", "Retry: busy", counted=True)),
        (Retry(after=0), Later(timedelta(0), "retry", "Retry", counted=True)),
        (raised_from(Retry(), pg.UniqueViolation()), Later(TEN, "23505", "Retry", counted=True)),
        (TerminalError("no"), Dead("terminal_error", "TerminalError: no")),
        (Bury("why"), Dead("bury", "Bury: why")),
        (Undecodable("not json"), Dead("undecodable", "Undecodable: not json")),
        (raised_from(Undecodable("bad"), pg.DeadlockDetected()), Dead("undecodable", "Undecodable: bad")),
        (pg.UniqueViolation("twice"), Dead("23505", "UniqueViolation: twice")),
        (OldDriver("twice"), Dead("23505", "OldDriver: twice")),
        (Wrapped(pg.ForeignKeyViolation()), Dead("23503", "Wrapped: wrapped")),
        (raised_from(PaymentDeclined("no"), pg.CheckViolation()), Dead("23514", "PaymentDeclined: no")),
        (TimeoutError("slow"), Later(TEN, "timeout", "TimeoutError: slow", counted=True)),
        (PaymentDeclined("no"), Later(TEN, "payment_declined", "PaymentDeclined: no", counted=True)),
        (pg.UndefinedTable("gone"), Later(TEN, "42P01", "UndefinedTable: gone", counted=True)),
        (KeyboardInterrupt(), Later(TEN, "keyboard_interrupt", "KeyboardInterrupt", counted=True)),
    ],
)
@pytest.mark.parametrize("ours", [True, False])
def test_verdicts_wherever_the_error_came_from(error: BaseException, verdict: Verdict, ours: bool) -> None:
    assert judge(error, ours=ours) == verdict


@pytest.mark.parametrize(
    ("classifier", "verdict"),
    [
        (lambda _: Bury("cannot be parsed"), Dead("bury", "Bury: cannot be parsed")),
        (lambda _: Retry(after="1h"), Later(timedelta(hours=1), "retry", "Retry", counted=True)),
        (lambda _: Snooze("5m"), Later(timedelta(minutes=5), "snooze", "Snooze", counted=False)),
        (lambda _: pg.UniqueViolation("twice"), Dead("23505", "UniqueViolation: twice")),
        (lambda error: None if isinstance(error, PaymentDeclined) else Bury("?"), judge(PaymentDeclined("no"))),
    ],
)
def test_a_classifier_says_what_an_error_counts_as(classifier: Classifier, verdict: Verdict) -> None:
    assert classify(PaymentDeclined("no"), 1, TABLE, 0.5, ours=False, classifier=classifier) == verdict


def test_a_classifier_that_fails_changes_nothing_but_the_message() -> None:
    def broken(error: BaseException) -> NoReturn:
        raise KeyError(str(error))

    for classifier, why in (
        (broken, "KeyError: 'no'"),
        (lambda _: 7, "TypeError: it returned 7, not an exception or None"),
    ):
        verdict = classify(PaymentDeclined("no"), 1, TABLE, 0.5, ours=False, classifier=classifier)  # type: ignore[arg-type]
        message = f"The function classify= failed ({why}). PaymentDeclined: no"
        assert verdict == Later(TEN, "payment_declined", message, counted=True)


def test_a_classifier_is_not_asked_about_infrastructure() -> None:
    verdict = classify(with_state("40001"), 1, TABLE, 0.5, ours=True, classifier=lambda _: Bury("no"))
    assert isinstance(verdict, Infrastructure)


def test_an_invalid_payload_is_dead() -> None:
    verdict = judge(invalid())
    assert isinstance(verdict, Dead)
    assert verdict.code == "invalid"
    assert verdict.message.startswith("ValidationError: 1 validation error for Model")


@pytest.mark.parametrize(
    "state", ["40001", "40P01", "55P03", "57P01", "57P02", "57P03", "08000", "08006", "08P01", "53000", "53300"]
)
def test_our_own_connection_is_nobodys_fault(state: str) -> None:
    error = with_state(state)
    for each in (error, Wrapped(error), raised_from(Exception(), error)):
        assert judge(each, attempt=99, ours=True) == Infrastructure(state, describe(each))
    assert judge(error) == Later(TEN, state, "PaymentDeclined: no", counted=True)


@pytest.mark.parametrize("state", ["57014", "40002", "42601", "25P02", "0A000", "54000", "XX000"])
def test_other_states_are_the_handlers_fault(state: str) -> None:
    assert judge(with_state(state), ours=True) == Later(TEN, state, "PaymentDeclined: no", counted=True)


@pytest.mark.parametrize(
    "error",
    [
        OperationalError("gone"),
        Disconnected("gone"),
        InterfaceError("closed"),
        psycopg.OperationalError("the connection is closed"),
        psycopg.DatabaseError("server closed the connection unexpectedly"),  # libpq's own, in a pipeline
        psycopg.InterfaceError("closed"),
        Wrapped(psycopg.OperationalError("gone")),
        raised_from(Exception(), Disconnected()),
    ],
)
def test_a_lost_connection_has_no_sqlstate(error: BaseException) -> None:
    assert judge(error, ours=True) == Infrastructure(code_of(error), describe(error))
    assert judge(error) == Later(TEN, code_of(error), describe(error), counted=True)


@pytest.mark.parametrize("error", [PaymentDeclined("no"), TimeoutError("no"), Retry("1h", "no"), Retry(reason="no")])
def test_the_last_attempt_buries(error: BaseException) -> None:
    verdicts = [judge(error, attempt) for attempt in (1, 2, 3, 4)]
    assert [type(verdict) for verdict in verdicts] == [Later, Later, Dead, Dead]
    assert verdicts[2] == Dead(verdicts[0].code, f"{type(error).__name__}: no", terminal=False)
    assert isinstance(judge(error, policy=RetryPolicy(retries=0)), Dead)


def test_a_snooze_never_buries() -> None:
    assert judge(Snooze("5m"), 1000, RetryPolicy(retries=0)) == Later(
        timedelta(minutes=5), "snooze", "Snooze", counted=False
    )


def test_the_policy_gets_the_attempt_and_the_chance() -> None:
    policy = RetryPolicy(base="8s")
    assert classify(Exception(), 3, policy, 0.25, ours=False) == Later(TEN * 0.8, "exception", "Exception", True)


@pytest.mark.parametrize("error", [Retry("30s", "busy"), Retry(None, "busy"), Snooze(30, "busy")])
def test_what_a_handler_raises_survives_a_process(error: Any) -> None:
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), vars(again), str(again)) == (type(error), vars(error), "busy")


def test_a_wait_that_is_none_is_refused_where_it_is_raised() -> None:
    for raising in (Retry, Snooze):
        with pytest.raises(ConfigError, match="'soon' is not a duration"):
            raising("soon")


@pytest.mark.parametrize("state", ["2350", "235050", b"23505", 23505, "", None, "23 05", "2350\x00", "23505\n"])
def test_what_is_no_sqlstate(state: object) -> None:
    assert sqlstate(with_state(state)) is None
    assert sqlstate(Wrapped(with_state(state))) is None


def test_the_own_sqlstate_comes_before_that_of_the_cause() -> None:
    error = raised_from(with_state("40001"), with_state("23505"))
    assert sqlstate(error) == "40001"
    assert sqlstate(raised_from(with_state("none"), with_state("23505"))) == "23505"
    assert sqlstate(raised_from(Wrapped(with_state("40001")), with_state("23505"))) == "40001"
    assert sqlstate(Wrapped("23505")) is None


def test_a_chain_of_causes_may_be_long_or_a_circle() -> None:
    deep: BaseException = with_state("23505")
    for _ in range(15):
        deep = raised_from(Exception(), deep)
    assert sqlstate(deep) == "23505"
    assert sqlstate(raised_from(Exception(), deep)) is None
    one, two = Wrapped(None), Wrapped(None)
    one.orig = one.__cause__ = two
    two.orig = two.__cause__ = one
    assert sqlstate(one) is None
    assert judge(one, ours=True) == Later(TEN, "wrapped", "Wrapped: wrapped", counted=True)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (PaymentDeclined(), "payment_declined"),
        (HTTPError2Go(), "http_error2_go"),
        (Shop._SoldOut(), "shop.sold_out"),
        (KeyError(), "key_error"),
        (OSError(), "os_error"),
        (type("Überfällig", (Exception,), {})(), "berf_llig"),
        (type("失敗", (Exception,), {})(), "error"),
        (type("1", (Exception,), {})(), "error"),
        (type("A" * 300, (Exception,), {})(), "a" * 200),
        (type("E", (Exception,), {"__qualname__": "a" * 199 + ".B"})(), "a" * 199),
    ],
)
def test_the_code_of_a_class(error: BaseException, code: str) -> None:
    assert code_of(error) == code


def test_the_code_of_a_local_class() -> None:
    class LocalError(Exception):
        pass

    assert code_of(LocalError()) == "local_error"


@settings(deadline=None)
@given(st.text(alphabet=st.characters(codec="utf-8", exclude_characters="\x00")))
def test_every_code_is_a_dotted_name(name: str) -> None:
    kind = type("Error", (Exception,), {})
    kind.__qualname__ = name
    assert names.wrong_dotted(code_of(kind()), names.TYPE_BYTES) is None


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("plain, ünïcode 😀\n\tnext", "plain, ünïcode 😀\n\tnext"),
        ("a\x00b", "ab"),
        ("\x1b[31mred", "\\x1b[31mred"),
        ("one\rtwo\x7f\x9b", "one\\x0dtwo\\x7f\\x9b"),
        ("pay \u202eeno", "pay \\u202eeno"),
        ("\u2066\u200f\u2028\ufeff", "\\u2066\\u200f\\u2028\\ufeff"),
        ("\ud83d\x00\ude00", "\\ud83d\\ude00"),
        ("\U000e0041", "\\U000e0041"),
        ("👩\u200d🚀", "👩\u200d🚀"),
        ("\\x1b", "\\x1b"),
    ],
)
def test_sanitise(text: str, clean: str) -> None:
    assert sanitise(text) == clean


@pytest.mark.parametrize(
    ("text", "limit", "clean"),
    [
        ("a" * 8192, 8192, "a" * 8192),
        ("a" * 8193, 8192, "a" * 8183 + CUT),
        ("é" * 6, 12, "é" * 6),
        ("é" * 7, 13, "é" * 2 + CUT),
        ("a" * 99, 9, CUT),
        ("a" * 99, 8, "a" * 8),
        ("\x00" * 99 + "a", 1, "a"),
        ("é", 1, ""),
        ("a", 0, ""),
    ],
)
def test_a_long_text_is_cut(text: str, limit: int, clean: str) -> None:
    assert sanitise(text, limit) == clean


@settings(deadline=None)
@given(any_text, st.integers(0, 60))
def test_sanitised_text_can_be_stored_and_stays_as_it_is(text: str, limit: int) -> None:
    clean = sanitise(text, limit)
    assert len(clean.encode()) <= limit
    assert names.unstorable(clean) is None
    assert sanitise(clean, limit) == clean
    if len(clean.encode()) < limit - 3:
        assert sanitise(text) == clean


def test_describe_a_group() -> None:
    group = BaseExceptionGroup("two", [PaymentDeclined("no"), KeyError("a")])
    assert describe(group) == "ExceptionGroup: two (2 sub-exceptions): [PaymentDeclined: no; KeyError: 'a']"
    many = ExceptionGroup("many", [ValueError(str(n)) for n in range(5)])
    assert describe(many).endswith(": [ValueError: 0; ValueError: 1; ValueError: 2; and 2 more]")
    assert judge(many) == Later(TEN, "exception_group", describe(many), counted=True)


def test_describe_groups_in_groups() -> None:
    group: Exception = ValueError("inmost")
    for _ in range(500):
        group = ExceptionGroup("g", [group])
    assert describe(group) == "ExceptionGroup: g (1 sub-exception): [" * 3 + "ExceptionGroup: g (1 sub-exception)]]]"


def refuse(*_: object) -> NoReturn:
    raise SystemExit("no")


class EvilText(str):
    __slots__ = ()
    encode = replace = __len__ = __iter__ = __getitem__ = __format__ = refuse  # type: ignore[assignment]


class EvilMeta(type):
    def __getattribute__(cls, name: str) -> Any:
        if name in ("__name__", "__qualname__", "__mro__"):
            raise SystemExit(name)
        return super().__getattribute__(name)


class EvilAttributes(Exception):
    def __getattribute__(self, name: str) -> Any:
        raise SystemExit(name)


class EvilClass(Exception, metaclass=EvilMeta):
    pass


class Speechless(Exception):
    __str__ = __repr__ = refuse


class EvilSpeech(Exception):
    def __str__(self) -> str:
        return EvilText("text")


class NoSpeech(Exception):
    def __str__(self) -> str:
        return 5  # type: ignore[return-value]


class EvilState(Exception):
    sqlstate = EvilText("23505")
    pgcode = orig = __cause__ = property(refuse)


class Endless(Exception):
    @property
    def orig(self) -> Endless:
        return Endless()


class EvilGroup(ExceptionGroup[Exception]):
    exceptions = property(refuse)


class EvilKind(Exception):
    __class__ = property(refuse)


class EmptySnooze(Snooze):
    def __init__(self) -> None:
        pass


class EmptyRetry(Retry):
    def __init__(self) -> None:
        pass


def negative_snooze() -> Snooze:
    error = Snooze(1)
    error.for_ = timedelta(-1)
    return error


@pytest.mark.parametrize(
    ("make", "code", "message"),
    [
        (lambda: EvilAttributes("x"), "evil_attributes", "EvilAttributes: x"),
        (lambda: EvilClass("x"), "error", "Error: x"),
        (lambda: Speechless(), "speechless", "Speechless: (its message cannot be read: SystemExit)"),
        (lambda: EvilSpeech(), "evil_speech", "EvilSpeech: text"),
        (lambda: NoSpeech(), "no_speech", "NoSpeech: (its message cannot be read: TypeError)"),
        (lambda: EvilState("x"), "evil_state", "EvilState: x"),
        (lambda: Endless("x"), "endless", "Endless: x"),
        (lambda: EvilKind("x"), "evil_kind", "EvilKind: x"),
        (lambda: EvilGroup("x", [Exception()]), "evil_group", "EvilGroup: x (1 sub-exception)"),
        (lambda: EmptySnooze(), "empty_snooze", "EmptySnooze: (its message cannot be read: AttributeError)"),
        (lambda: EmptyRetry(), "empty_retry", "EmptyRetry: (its message cannot be read: AttributeError)"),
        (negative_snooze, "snooze", "Snooze"),
        (lambda: Exception("\ud800\x00" * 9000), "exception", "Exception: " + "\\ud800" * 1362 + CUT),
    ],
)
@pytest.mark.parametrize("ours", [True, False])
def test_nothing_escapes_from_a_hostile_error(
    make: Callable[[], BaseException], code: str, message: str, ours: bool
) -> None:
    verdict = judge(make(), ours=ours)
    assert verdict == Later(TEN, code, message, counted=True)
    assert len(verdict.message.encode()) <= MESSAGE_BYTES
    assert type(verdict.message) is str


class Answering:
    def __init__(self, answer: Any) -> None:
        self.answer = answer

    def delay(self, attempt: int, chance: float) -> timedelta | None:  # noqa: ARG002
        return self.answer() if callable(self.answer) else self.answer  # type: ignore[no-any-return]


@pytest.mark.parametrize("answer", [refuse, "soon", timedelta(-1), timedelta.max, float("nan")])
def test_a_broken_policy_is_named_and_replaced(answer: object) -> None:
    verdicts = [judge(PaymentDeclined("no"), attempt, Answering(answer)) for attempt in (1, 2, 6)]
    assert [type(verdict) for verdict in verdicts] == [Later, Later, Dead]
    assert isinstance(verdicts[1], Later)
    assert verdicts[1].delay == timedelta(seconds=2)
    for verdict in verdicts:
        assert verdict.message.startswith("The retry policy failed (")
        assert verdict.message.endswith("), the default one was used. PaymentDeclined: no")


def test_the_only_error_of_a_group_counts() -> None:
    """What a TaskGroup raises when one of its tasks said Bury."""
    assert judge(ExceptionGroup("tasks", [ExceptionGroup("inner", [Bury("why")])])) == Dead("bury", "Bury: why")
    assert isinstance(judge(ExceptionGroup("tasks", [Bury("why"), ValueError("too")])), Later)


def raised(error: BaseException, folder: Path, comment: str = "") -> BaseException:
    """Eight calls down in a module of somebody else's."""
    source = folder / "theirs.py"
    calls = "".join(f"def f{n}():\n    f{n + 1}()  # {comment}\n" for n in range(7))
    source.write_text(calls + "def f7():\n    raise error  # password=hunter2\n")
    namespace: dict[str, Any] = {"error": error}
    exec(compile(source.read_text(), str(source), "exec"), namespace)
    try:
        namespace["f0"]()
    except BaseException as caught:
        return caught
    raise AssertionError


def test_the_last_frames_of_an_error(tmp_path: Path) -> None:
    [first, *frames] = (last_frames(raised(ValueError("no"), tmp_path)) or "").split("  File ")
    assert (first, len(frames)) == ("", 5)
    assert all(frame.startswith(f'"{tmp_path}/theirs.py", line ') for frame in frames)
    assert "in f7\n    raise error  # password=***\n" in frames[-1]
    assert last_frames(ValueError("never raised")) is None
    assert last_frames(raised(Undecodable("its frames are ours"), tmp_path)) is None
    grouped = BaseExceptionGroup("one", [raised(ValueError("inside"), tmp_path)])
    assert "raise error" in (last_frames(grouped) or "")


def test_the_last_frames_are_cut_at_the_front_and_survive_a_pipe(tmp_path: Path) -> None:
    error = raised(ValueError("no"), tmp_path, comment="é" * 1000)
    text = last_frames(error) or ""
    assert 4000 < len(text.encode()) <= 4096
    assert text.startswith("… (cut)\n")
    assert "in f7\n    raise error  # password=***\n" in text
    keep_frames(error)
    carried = pickle.loads(pickle.dumps(error))
    assert carried.__traceback__ is None
    assert last_frames(carried) == text


def test_an_error_that_cannot_be_looked_at_has_no_frames(tmp_path: Path) -> None:
    class Hostile(Exception):
        def __getattribute__(self, name: str) -> Any:
            raise SystemExit

        def __setattr__(self, name: str, value: object) -> None:
            raise SystemExit

    error = raised(Hostile(), tmp_path)
    keep_frames(error)
    assert last_frames(error) is None
