"""How a command ends: exit statuses, Ctrl-C, errors that are the user's and errors that are not."""

import json
import signal
import sys

import pytest
import torch

from conftest import python
from recurconv import evaluation, training
from recurconv.cli import terminal
from recurconv.divergence import TrainingError
from recurconv.interruption import InterruptionError

# --- how it ends


def ending(command, monkeypatch, error):
    """The command line when an evaluation raises ``error``."""

    def fail(*args, **options):
        raise error

    monkeypatch.setattr(evaluation, "evaluate", fail)
    return command("evaluate", "x", "--data", "y", "--split", "test")


def test_ctrl_c_ends_with_130_and_nothing_else(command, monkeypatch):
    monkeypatch.setattr(evaluation, "evaluate", lambda *args, **options: signal.raise_signal(signal.SIGINT))
    assert command("evaluate", "x", "--data", "y", "--split", "test") == (130, "", "")


def test_sigterm_ends_with_143_and_tidies_up(command, monkeypatch):
    tidied = []

    def work(*args, **options):
        try:
            signal.raise_signal(signal.SIGTERM)
        finally:
            tidied.append(True)

    monkeypatch.setattr(evaluation, "evaluate", work)
    assert command("evaluate", "x", "--data", "y", "--split", "test") == (143, "", "")
    assert tidied


@pytest.mark.parametrize("error", [KeyError("a"), TypeError("b"), AssertionError("c"), RuntimeError("in a test")])
def test_a_mistake_in_the_program_is_not_hidden(command, monkeypatch, error):
    with pytest.raises(type(error)) as kept:
        ending(command, monkeypatch, error)
    assert kept.value is error


def test_an_error_out_of_a_library_is_not_hidden(command, monkeypatch):
    monkeypatch.setattr(evaluation, "evaluate", lambda *args, **options: torch.zeros(2) @ torch.zeros(3))
    with pytest.raises(RuntimeError):
        command("evaluate", "x", "--data", "y", "--split", "test")
    monkeypatch.setattr(evaluation, "evaluate", lambda *args, **options: json.loads("{"))
    with pytest.raises(ValueError, match="Expecting"):
        command("evaluate", "x", "--data", "y", "--split", "test")


def test_an_operator_that_fails_where_this_package_calls_it_is_not_hidden(command, monkeypatch):
    def named(body):
        names = {"__name__": "recurconv.evaluation", "x": torch.zeros(2)}
        exec(compile(f"def evaluate(*args, **options):\n    {body}", "evaluation", "exec"), names)
        monkeypatch.setattr(evaluation, "evaluate", names["evaluate"])
        return command("evaluate", "x", "--data", "y", "--split", "test")

    with pytest.raises(RuntimeError, match="expected dtype"):
        named("x.lerp_(x.bfloat16(), 0.5)")
    assert named("raise RuntimeError('rank 1 failed: the reason')").err == "recurconv: rank 1 failed: the reason\n"


def test_a_name_that_the_terminal_cannot_show_costs_nothing():
    code = (
        "import io, sys; from recurconv import cli\n"
        "cli.app.command()(lambda: print(chr(228)))\n"
        "cli.app.registered_commands[-1].name = 'speak'\n"
        "sys.stdout.reconfigure(encoding='ascii')\n"
        "sys.argv = ['recurconv', 'speak']; cli.main()"
    )
    done = python(code)
    assert (done.returncode, done.stdout) == (0, "\\xe4\n")


@pytest.mark.parametrize("text", ["CUDA out of memory. Tried to allocate 2 GiB", "can't allocate memory: 9 bytes"])
def test_too_little_memory_is_one_line(command, monkeypatch, text):
    assert ending(command, monkeypatch, RuntimeError(text)) == (2, "", f"recurconv: {text}\n")
    assert ending(command, monkeypatch, MemoryError("no room")) == (2, "", "recurconv: no room\n")


def test_what_the_system_says_is_one_line(command, monkeypatch):
    done = ending(command, monkeypatch, PermissionError(13, "Permission denied", "data"))
    assert done == (2, "", "recurconv: [Errno 13] Permission denied: 'data'\n")


def test_a_message_of_many_lines_becomes_one(command, monkeypatch):
    done = ending(command, monkeypatch, OSError("2 pictures cannot be read:\n  a.png\n  b.png"))
    assert done.err == "recurconv: 2 pictures cannot be read: a.png b.png\n"


def test_a_run_that_was_stopped_has_its_own_status(command, monkeypatch, tmp_path):
    words = ["train", "r2-cifar10", "--data", "d", "--out", tmp_path]
    for error, status in ((TrainingError, 1), (InterruptionError, 130)):
        # Raised in the package, as the loop does.
        code = compile("def train(*args, **options): raise error('the reason')", "train", "exec")
        names = {"__name__": "recurconv.training", "error": error}
        exec(code, names)
        monkeypatch.setattr(training, "train", names["train"])
        assert command(*words) == (status, "", "recurconv: the reason\n")


def test_ctrl_c_during_an_import_that_swallows_it():
    code = (
        "import os, signal, time\n"
        "from recurconv.cli.terminal import importing\n"
        "with importing():\n"
        "    try:\n"
        "        os.kill(os.getpid(), signal.SIGINT)\n"
        "        time.sleep(60)\n"
        "    except BaseException: pass\n"
        "print('it went on')"
    )
    done = python(code)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_ctrl_c_is_as_before_after_imports():
    before = signal.getsignal(signal.SIGINT)
    with terminal.importing():
        assert signal.getsignal(signal.SIGINT) is not before
    assert signal.getsignal(signal.SIGINT) is before


def test_progress_is_seen_on_a_terminal_only(monkeypatch, capsys):
    for seen in (False, True):
        monkeypatch.setattr(sys.stderr, "isatty", lambda seen=seen: seen)
        with terminal.working() as say:
            say("measuring")
        shown = capsys.readouterr()
        assert shown.out == ""
        assert ("measuring" in shown.err) is seen
        assert shown.err == "" or shown.err.endswith("\r\x1b[K\r")  # and nothing is left of it
