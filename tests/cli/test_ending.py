"""A command ends when it is told, at whatever moment it is told and however often."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading

import pytest

from session_manager.cli.ending import Ending
from tests.wire import clean_environment

SIGNALS = [signal.SIGTERM, signal.SIGINT]

AT_EVERY_STEP = """
import signal, sys
from session_manager.cli.ending import Ending

ending = Ending()
steps = 0

def told_again(frame, event, arg):
    global steps
    frame.f_trace_opcodes = True
    steps += 1
    signal.raise_signal(signal.SIGTERM)
    return told_again

sys.settrace(told_again)
told = ending.wait(30)
sys.settrace(None)
print(told, steps > 5, ending.wait(0))
"""


def _run(code: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=clean_environment(), bufsize=1
    )


def test_a_signal_at_any_step_of_the_waiting_is_heard() -> None:
    with _run(AT_EVERY_STEP) as child:
        try:
            said, _ = child.communicate(timeout=20)
        finally:
            child.kill()
    assert said.split() == ["True", "True", "True"]


UNTIL_THE_VERY_END = """
import signal
from session_manager.cli.ending import Ending

class Last:
    def __del__(self, raise_signal=signal.raise_signal, number=signal.SIGTERM):
        raise_signal(number)

last = Last()
last.itself = last  # goes with the interpreter, when no handler is left
ending = Ending()
ending.tell()
print(ending.wait())
"""


def test_a_signal_that_comes_when_python_is_gone_already_changes_nothing() -> None:
    with _run(UNTIL_THE_VERY_END) as child:
        said, _ = child.communicate(timeout=20)
    assert (said, child.returncode) == ("True\n", 0)


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_that_comes_while_it_waits_without_end_is_heard(number: signal.Signals) -> None:
    code = "from session_manager.cli.ending import Ending; e = Ending(); print('waiting', flush=True); print(e.wait())"
    with _run(code) as child:
        try:
            assert child.stdout is not None
            assert child.stdout.readline() == "waiting\n"
            child.send_signal(number)
            child.send_signal(number)
            said, _ = child.communicate(timeout=20)
        finally:
            child.kill()
    assert (said, child.returncode) == ("True\n", 0)


def test_another_thread_may_tell_and_what_is_told_stays_told() -> None:
    handlers = [signal.getsignal(number) for number in SIGNALS]
    try:
        ending = Ending()
        assert not ending.wait(0)
        teller = threading.Thread(target=ending.tell)
        teller.start()
        assert [ending.wait(20), ending.wait(20)] == [True, True]
        teller.join()
        signal.raise_signal(signal.SIGTERM)
        assert ending.wait(20)
    finally:
        for number, handler in zip(SIGNALS, handlers, strict=True):
            signal.signal(number, handler)
