"""What a run shows: lines, a bar, TensorBoard."""

import io
import sys

import pytest
from rich.console import Console

import tiny
from recurconv import progress


def shown(monkeypatch, terminal, width=100):
    stream = io.StringIO()
    monkeypatch.setattr(progress, "Console", lambda **_: Console(file=stream, force_terminal=terminal, width=width))
    return stream


def test_quiet_prints_one_whole_line_an_epoch(tmp_path, monkeypatch):
    stream = shown(monkeypatch, terminal=False, width=40)
    tiny.train(tiny.recipe(), "tiny", tmp_path / "run")
    lines = stream.getvalue().splitlines()
    assert len(lines) == 2
    row = tiny.rows(tmp_path / "run")[1]
    errors = "  ".join(f"{row['held_out error (%)'][steps]:.2f} at {steps}" for steps in ("2", "3", "4"))
    assert lines[1].endswith(f"loss {row['loss']:.4f}  held-out error (%) {errors}")


def test_the_bar_shows_rate_time_left_loss_and_held_out_errors(monkeypatch):
    stream = shown(monkeypatch, terminal=True)
    row = {"epoch": 1, "iteration": 3, "seconds": 1.0, "loss": 1.5, "held_out error (%)": {"2": 9.0, "3": 8.5}}
    with progress.Progress(0, 6) as bar:
        for iteration in (1, 2, 3):
            bar.advance(iteration, 1.5)
        bar.epoch(row)
    text = stream.getvalue()
    assert "9.00 at 2  8.50 at 3" in text
    assert "3/6" in text
    assert "it/s" in text
    assert "loss 1.5000" in text


def test_tensorboard_where_asked_for(tmp_path, monkeypatch):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    tiny.train(tiny.recipe(), "tiny", tmp_path / "run", tensorboard=True)
    events = accumulator.EventAccumulator(str(tmp_path / "run" / "tensorboard")).Reload()
    assert len(events.Scalars("loss")) == 6
    held_out = events.Scalars("held_out error (%)/steps 4")
    assert [event.step for event in held_out] == [3, 6]
    assert held_out[1].value == pytest.approx(tiny.rows(tmp_path / "run")[1]["held_out error (%)"]["4"])


def test_tensorboard_that_is_not_installed_is_said_before_anything_is_written(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(ValueError, match=r"pip install 'recurconv\[tensorboard\]'"):
        tiny.train(tiny.recipe(), "tiny", tmp_path / "run", tensorboard=True)
    assert not (tmp_path / "run").exists()
