"""Listeners: called in place, ended by themselves or by an error, and never a reason for publishing to fail."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from outrider.signals import Choosy, Fired, Signal, Signals, Taken

ONE = Taken("a.reader", 0, 1, "done")
TWO = Taken("a.reader", 0, 2, "more")


def test_everyone_hears_everything_in_the_order_of_listening() -> None:
    signals = Signals()
    heard: list[tuple[str, Signal]] = []
    signals.listen(lambda signal: heard.append(("first", signal)))
    signals.listen(lambda signal: heard.append(("second", signal)))
    signals.emit(ONE)
    signals.emit(TWO)
    assert heard == [("first", ONE), ("second", ONE), ("first", TWO), ("second", TWO)]


def test_a_listener_ends_once_and_ending_it_again_is_harmless() -> None:
    signals = Signals()
    heard: list[Signal] = []
    end = signals.listen(heard.append)
    signals.emit(ONE)
    end()
    end()
    signals.emit(TWO)
    assert heard == [ONE]


def test_one_that_raises_is_dropped_with_a_warning_and_the_others_hear_on(caplog: pytest.LogCaptureFixture) -> None:
    signals = Signals()
    heard: list[Signal] = []

    def broken(signal: Signal) -> None:
        raise RuntimeError("out of paper: redis://:hunter2@printer")

    end = signals.listen(broken)
    signals.listen(heard.append)
    signals.emit(ONE)
    [told] = [each.getMessage() for each in caplog.records]
    assert told.endswith("broken was removed: RuntimeError: out of paper: redis://:***@printer")
    signals.emit(TWO)
    end()
    assert heard == [ONE, TWO]


def test_a_listener_may_end_itself_and_then_raise() -> None:
    signals = Signals()
    heard: list[Signal] = []

    def last(signal: Signal) -> None:
        end()
        raise RuntimeError("and gone")

    end = signals.listen(last)
    signals.listen(heard.append)
    signals.emit(ONE)
    assert heard == [ONE]


def test_a_listener_may_add_another_while_it_is_called() -> None:
    signals = Signals()
    heard: list[Signal] = []

    def hand_over(_: Signal) -> None:
        end()
        signals.listen(heard.append)

    end = signals.listen(hand_over)
    signals.emit(ONE)
    signals.emit(TWO)
    assert heard == [TWO]


def test_what_is_no_error_passes_through() -> None:
    signals = Signals()

    def interrupted(signal: Signal) -> None:
        raise KeyboardInterrupt

    signals.listen(interrupted)
    with pytest.raises(KeyboardInterrupt):
        signals.emit(ONE)


def test_a_listener_is_called_on_the_thread_where_it_happened() -> None:
    signals = Signals()
    threads: list[int] = []
    signals.listen(lambda _: threads.append(threading.get_ident()))
    worker = threading.Thread(target=signals.emit, args=[ONE])
    worker.start()
    worker.join()
    assert threads == [worker.ident]


def test_signals_that_nobody_wants_are_not_even_created() -> None:
    class OnlyFired(Choosy):
        heard: list[Signal]

        def wants(self, kind: type[Signal]) -> bool:
            return kind is Fired

        def __call__(self, signal: Signal) -> None:
            self.heard.append(signal)

    def created() -> Iterator[Signal]:
        made.append(ONE)
        yield ONE

    signals, choosy, made, heard = Signals(), OnlyFired(), list[Signal](), list[Signal]()
    choosy.heard = []
    signals.emit_all(Taken, created())
    signals.listen(choosy)
    signals.emit_all(Taken, created())
    assert (made, choosy.heard) == ([], [])
    signals.listen(heard.append)
    signals.emit_all(Taken, created())
    assert made == heard == choosy.heard == [ONE]
