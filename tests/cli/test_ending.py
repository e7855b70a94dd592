"""A command ends when it is told, at whatever moment it is told and however often."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from ast import literal_eval
from pathlib import Path

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
told = ending.wait(60)
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
            said, _ = child.communicate(timeout=60)
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
        said, _ = child.communicate(timeout=60)
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
            said, _ = child.communicate(timeout=60)
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
        assert [ending.wait(60), ending.wait(60)] == [True, True]
        teller.join()
        signal.raise_signal(signal.SIGTERM)
        assert ending.wait(60)
    finally:
        for number, handler in zip(SIGNALS, handlers, strict=True):
            signal.signal(number, handler)


WHILE_AN_IMPORT_ENDS = """
import signal, sys
from session_manager.__main__ import main

def entered(frame, event, arg):
    if frame.f_code.co_name == "cb" and "importlib" in frame.f_code.co_filename:
        sys.setprofile(None)
        signal.raise_signal(signal.SIGINT)

sys.argv = ["session-manager", "manifest"]
sys.setprofile(entered)
main()
"""


def test_ctrl_c_in_the_imports_of_a_command_is_not_lost_and_shows_nothing() -> None:
    done = subprocess.run(
        [sys.executable, "-c", WHILE_AN_IMPORT_ENDS], capture_output=True, text=True, env=clean_environment()
    )
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, "", "")


BEFORE_THE_FIRST_LINE = """
import sys
before = set(sys.modules)
import session_manager.__main__
print(sorted(sys.modules.keys() - before))
"""


def test_until_ctrl_c_is_seen_to_nothing_is_imported_that_takes_time() -> None:
    done = subprocess.run(
        [sys.executable, "-c", BEFORE_THE_FIRST_LINE], capture_output=True, text=True, env=clean_environment()
    )
    ours = {name for name in literal_eval(done.stdout) if name.startswith(("session_manager", "importlib"))}
    assert ours == {"session_manager", "session_manager.__main__"}


@pytest.mark.parametrize(
    "command", [("dev", "--port", "0"), ("serve", "--url", "ws://127.0.0.1:1"), ("watch", "--url", "ws://127.0.0.1:1")]
)
def test_a_command_that_goes_on_and_on_can_be_told_to_end_before_it_imports_more(
    command: tuple[str, ...], tmp_path: Path
) -> None:
    code = f"""
import signal, sys
from session_manager.cli import ending, main

class Told(ending.Ending):
    def __init__(self):
        assert "session_manager.edge.client" not in sys.modules
        assert "session_manager.dev" not in sys.modules
        super().__init__()
        signal.raise_signal(signal.SIGTERM)

ending.Ending = Told
main({list(command)!r})
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=clean_environment(), cwd=tmp_path, timeout=60
    )
    assert "Traceback" not in done.stderr
    assert done.returncode == 0, done.stderr
