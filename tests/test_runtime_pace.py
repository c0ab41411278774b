"""Budgets in milliseconds: calibration, its file, and what calls teach; with a clock of our own, on fake networks."""

import json
import math
import threading
import types

import numpy as np
import pytest

import handmade
import recurconv as rc
from recurconv.runtime import calibration, pace
from recurconv.runtime import dial as dials
from recurconv.runtime.calibration import Calibration, Machine, Store, measure, shape_class
from recurconv.runtime.pace import Pace

GAINS = {2: 1.0, 3: 10.0, 4: 100.0}
SHAPE = (4, 3, 8, 8)
PIXELS = math.prod(SHAPE)


class Clock:
    """Time that passes only where a network runs: ``milliseconds[steps]`` a call, times ``load``, for ``SHAPE``."""

    def __init__(self, milliseconds):
        self.now, self.load, self.milliseconds, self.calls = 0.0, 1.0, milliseconds, []

    def run(self, steps, pixels=PIXELS):
        self.calls.append(steps)
        self.now += self.milliseconds[steps] * self.load * pixels / PIXELS / 1e3

    def perf_counter(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    made = Clock({2: 2.0, 3: 3.0, 4: 4.0})
    monkeypatch.setattr(calibration.time, "perf_counter", made.perf_counter)  # the module, so of dial.py, too
    return made


@pytest.fixture
def open_dial(tmp_path, clock, monkeypatch):
    """Open a dial whose network takes what the clock says."""
    file = handmade.classifier(tmp_path / "model" / "m.onnx", GAINS) if (tmp_path / "model").mkdir() is None else None

    def forward(self, array, sigma, steps):
        clock.run(steps, array.size)
        return np.zeros((len(array), 3), np.float32)

    monkeypatch.setattr(dials.Dial, "_forward", forward)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("LOCALAPPDATA", str(tmp_path / "cache"))
    return lambda **options: rc.Dial(file, **options)


def images(shape=SHAPE):
    return np.zeros(shape, np.float32)


# --- the choice


@pytest.mark.parametrize(("budget", "steps"), [(2.1, 2), (2.9, 2), (3.1, 3), (4.1, 4), (1e3, 4)])
def test_the_largest_setting_within_the_time_runs(open_dial, budget, steps):
    result = open_dial().run(images(), milliseconds=budget)
    assert result.steps == steps
    assert result.milliseconds == pytest.approx(steps)


def test_what_nothing_fits(open_dial):
    dial = open_dial()
    with pytest.warns(
        UserWarning, match=r"^milliseconds=1 fits no setting; the smallest, steps=2, takes about 2 ms, and"
    ):
        assert dial.run(images(), milliseconds=1).steps == 2
    with pytest.raises(ValueError, match=r"^milliseconds=1 fits no setting; .*; give a larger budget, or leave strict"):
        dial.run(images(), milliseconds=1, strict=True)


def test_a_refused_call_tries_again_after_a_while(open_dial, clock, monkeypatch):
    """Strict calls that are refused run nothing, so that the end of a load would never be seen."""
    monkeypatch.setattr(pace, "time", types.SimpleNamespace(monotonic=clock.perf_counter))
    dial = open_dial()
    assert dial.run(images(), milliseconds=5, strict=True).steps == 4
    clock.load = 50.0
    dial.run(images(), milliseconds=1e3)
    for _ in range(10):
        dial.run(images(), steps=2)

    def refused():
        with pytest.raises(ValueError, match="milliseconds=5 fits no setting"):
            dial.run(images(), milliseconds=5, strict=True)

    refused()
    clock.load = 1.0
    for _ in range(5):  # at once: nothing is tried
        before = len(clock.calls)
        refused()
        assert len(clock.calls) == before
    waits = 0
    while waits < 30:
        clock.now += 1.0
        waits += 1
        try:
            assert dial.run(images(), milliseconds=5, strict=True).steps == 2
        except ValueError:
            continue
        break
    assert waits < 20


def test_the_cache_may_be_in_the_home_folder(open_dial, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    open_dial(cache="~/times.json").run(images(), milliseconds=5)
    assert (tmp_path / "times.json").is_file()


def test_other_shapes_of_a_class_are_scaled_by_their_pixels(open_dial, clock):
    dial = open_dial()
    dial.run(images(), milliseconds=10)
    calibrated = len(clock.calls)
    assert dial.run(images((3, 3, 8, 8)), milliseconds=3.1).steps == 4  # 3 of 4 images: 3 ms
    assert len(clock.calls) == calibrated + 1
    assert dial.run(images((5, 3, 8, 8)), milliseconds=4.1).steps == 3  # another class: it is measured
    assert len(clock.calls) > calibrated + 2


def test_classes_of_shapes():
    assert shape_class((1, 3, 32, 32)) == "1 x 1024"
    assert shape_class((3, 3, 32, 32)) == shape_class((4, 1, 30, 33)) == "4 x 1024"
    assert shape_class((5, 3, 32, 33)) == "8 x 2048"


def test_load_leads_to_smaller_settings_and_its_end_back(open_dial, clock):
    dial = open_dial()

    def run():
        result = dial.run(images(), milliseconds=5)
        return result.steps, result.milliseconds <= 5

    assert [run() for _ in range(5)] == [(4, True)] * 5
    clock.load = 2.0
    loaded = [run() for _ in range(20)]
    assert loaded.index((2, True)) <= 5
    assert loaded[5:].count((2, True)) >= 13  # a larger one may be tried
    clock.load = 1.0
    free = [run() for _ in range(20)]
    assert all(fits for _, fits in free)
    assert free.index((4, True)) <= 8
    assert free[8:] == [(4, True)] * 12


def test_one_hiccup_costs_a_few_calls_at_most(open_dial, clock):
    dial = open_dial()
    dial.run(images(), milliseconds=5)
    clock.load = 50.0
    dial.run(images(), milliseconds=5)
    clock.load = 1.0
    assert [dial.run(images(), milliseconds=5).steps for _ in range(6)][3:] == [4, 4, 4]


def test_a_setting_whose_calibration_is_wrong_is_learned(clock):
    """Setting 4 takes 6 ms, not 4: in the long run 3 runs, and the budget is rarely broken."""
    pace = Pace(Calibration(SHAPE, {2: 2.0, 3: 3.0, 4: 4.0}), (2, 3, 4))
    truth = {2: 2.0, 3: 3.0, 4: 6.0}
    ran = []
    for _ in range(500):
        steps = pace.choose(5.0, SHAPE)
        pace.observe(steps, SHAPE, truth[steps])
        ran.append(steps)
    assert ran[0] == 4
    assert set(ran[100:]) == {3, 4}
    assert 1 <= ran[100:].count(4) <= 32  # of 400: it is tried again now and then
    assert pace.expected(3, SHAPE) == pytest.approx(3.0, rel=0.05)


def test_calls_at_a_named_setting_teach_too(open_dial, clock):
    dial = open_dial()
    dial.run(images(), milliseconds=5)
    clock.load = 2.0
    for _ in range(10):
        dial.run(images(), steps=2)
        dial.run(images(), confidence=0.9)
    assert dial.run(images(), milliseconds=5).steps == 2


def test_expected_times_stay_finite():
    pace = Pace(Calibration(SHAPE, {2: 2.0}), (2,))
    for milliseconds in [0.0] * 50 + [1e12] * 200:
        pace.observe(2, SHAPE, milliseconds)
        assert 0 < pace.expected(2, SHAPE) < math.inf


# --- the calibration


def test_settings_are_measured_in_turn_and_the_first_call_does_not_count(clock):
    def call(steps):
        clock.now += 0.5 if steps not in clock.calls else 0.0  # what only the first call does
        clock.run(steps)

    assert measure(call, (2, 3, 4)) == pytest.approx({2: 502, 3: 503, 4: 504})  # a second has passed: no other round
    clock.calls.clear()
    clock.milliseconds = {2: 0.02, 3: 0.03, 4: 0.04}
    found = measure(lambda steps: clock.run(steps), (2, 3, 4))
    assert found == pytest.approx(clock.milliseconds)
    assert clock.calls == [2, 3, 4] * 6


def test_a_slow_network_is_called_once_at_each_setting(clock):
    clock.milliseconds = {2: 2000.0, 3: 3000.0, 4: 4000.0}
    assert measure(clock.run, (2, 3, 4)) == pytest.approx(clock.milliseconds)
    assert clock.calls == [2, 3, 4]


def test_it_is_measured_once_and_kept_beside_the_model(open_dial, clock, tmp_path):
    open_dial().run(images(), milliseconds=5)
    assert len(clock.calls) == 3 * 6 + 1
    kept = tmp_path / "model" / "m.onnx.calibration.json"
    assert {path.name for path in kept.parent.iterdir()} == {"m.onnx", "m.onnx.data", kept.name}
    clock.calls.clear()
    clock.milliseconds = {2: 20.0, 3: 30.0, 4: 40.0}  # not noticed before a call is measured
    assert open_dial().run(images(), milliseconds=5).steps == 4
    assert clock.calls == [4]


def test_calibrate_measures_now_and_for_others(open_dial, clock):
    assert open_dial().calibrate(4, 8, 8) == pytest.approx({2: 2.0, 3: 3.0, 4: 4.0})
    clock.milliseconds = {2: 4.0, 3: 6.0, 4: 8.0}
    dial = open_dial()
    assert dial.run(images(), milliseconds=4.5).steps == 4  # the kept one
    assert dial.calibrate(4, 8, 8) == pytest.approx({2: 4.0, 3: 6.0, 4: 8.0})
    assert dial.run(images(), milliseconds=4.5).steps == 2
    with pytest.raises(ValueError, match="batch=0, height=8, width=8; each is a whole number from 1 on"):
        dial.calibrate(0, 8, 8)
    with pytest.raises(ValueError, match="images are 4 x 8 pixels; the smallest"):
        dial.calibrate(1, 4, 8)


@pytest.mark.parametrize(
    "other",
    [{"threads": 3}, {"providers": ("CUDAExecutionProvider",)}, {"processor": "other"}, {"onnxruntime": "9.9"}],
)
def test_it_is_measured_anew_for_another_machine(other, tmp_path):
    file = tmp_path / "c.json"
    facts = {"processor": "p", "threads": 2, "providers": ("CPUExecutionProvider",), "onnxruntime": "1.20"}
    found = Calibration(SHAPE, {2: 1.0, 3: 2.0})
    Store("sum", Machine(**facts), (2, 3), [file]).put("4 x 64", found)
    assert Store("sum", Machine(**facts), (2, 3), [file]).get("4 x 64") == found
    other_store = Store("sum", Machine(**{**facts, **other}), (2, 3), [file])
    assert other_store.get("4 x 64") is None
    other_store.put("4 x 64", Calibration(SHAPE, {2: 7.0, 3: 8.0}))
    assert Store("sum", Machine(**facts), (2, 3), [file]).get("4 x 64") == found  # both are kept


def test_it_is_measured_anew_for_another_model_or_class(tmp_path):
    file, machine = tmp_path / "c.json", Machine("p", 1, ("CPU",), "1")
    store = Store("sum", machine, (2, 3), [file])
    store.put("4 x 64", Calibration(SHAPE, {2: 1.0, 3: 2.0}))
    assert store.get("8 x 64") is None
    assert Store("other", machine, (2, 3), [file]).get("4 x 64") is None
    assert Store("sum", machine, (2, 3, 4), [file]).get("4 x 64") is None
    Store("other", machine, (2, 3), [file]).put("8 x 64", Calibration(SHAPE, {2: 3.0, 3: 4.0}))
    assert store.get("4 x 64") is None  # another model has the name now


def test_threads_are_part_of_the_machine(open_dial, clock):
    for threads in (1, 2, 1):
        open_dial(threads=threads).run(images(), milliseconds=5)
    assert len(clock.calls) == 2 * 18 + 3


BROKEN = [
    "",
    "{",
    "[1]",
    "null",
    "{}",
    '{"format": 1}',
    '{"format": 1, "model": MODEL, "machines": [1]}',
    '{"format": 1, "model": MODEL, "machines": {MACHINE: 3}}',
    '{"format": 1, "model": MODEL, "machines": {MACHINE: {"4 x 64": 3}}}',
    '{"format": 1, "model": MODEL, "machines": {MACHINE: {"4 x 64": {"shape": [4, 3, 8], "milliseconds": {}}}}}',
    '{"format": 1, "model": MODEL, "machines": {MACHINE: {"4 x 64": {"shape": [4, 3, 8, 8], "milliseconds": []}}}}',
    *(
        '{"format": 1, "model": MODEL, "machines": {MACHINE: {"4 x 64": '
        f'{{"shape": {shape}, "milliseconds": {{"2": {two}, "3": 3, "4": 4}}}}}}}}}}'
        for shape, two in (
            ("[4, 3, 8, 8]", "-1"),
            ("[4, 3, 8, 8]", "NaN"),
            ("[4, 3, 8, 8]", "0"),
            ("[0, 3, 8, 8]", "2"),
        )
    ),
]


@pytest.mark.parametrize("text", BROKEN)
def test_a_broken_file_is_measured_again(open_dial, clock, tmp_path, text):
    dial = open_dial()
    file = tmp_path / "model" / "m.onnx.calibration.json"
    text = text.replace("MODEL", json.dumps(dial._store.model)).replace("MACHINE", json.dumps(dial._store.machine))
    file.write_text(text)
    assert dial.run(images(), milliseconds=3.5).steps == 3
    assert len(clock.calls) == 18 + 1
    assert open_dial().run(images(), milliseconds=3.5).steps == 3  # it is whole again
    assert len(clock.calls) == 18 + 2


def test_where_the_models_folder_cannot_be_written_the_users_cache_is_used(open_dial, clock, tmp_path, monkeypatch):
    def refusing(path, value, write=calibration.write_json):
        if path.parent.name == "model":
            raise PermissionError(13, "Permission denied", str(path))
        write(path, value)

    monkeypatch.setattr(calibration, "write_json", refusing)
    open_dial().run(images(), milliseconds=5)
    (kept,) = (tmp_path / "cache" / "recurconv").iterdir()
    assert kept.name.endswith("-m.onnx.calibration.json")
    open_dial().run(images(), milliseconds=5)
    assert len(clock.calls) == 18 + 2


def test_where_nothing_can_be_written_each_process_measures(open_dial, clock, monkeypatch):
    def refusing(path, value):
        raise OSError(30, "Read-only file system", str(path))

    monkeypatch.setattr(calibration, "write_json", refusing)
    dial = open_dial()
    for _ in range(3):
        dial.run(images(), milliseconds=5)
    assert len(clock.calls) == 18 + 3


def test_a_file_of_ones_own(open_dial, tmp_path):
    open_dial(cache=tmp_path / "mine" / "c.json").run(images(), milliseconds=5)
    assert (tmp_path / "mine" / "c.json").is_file()
    assert not (tmp_path / "model" / "m.onnx.calibration.json").exists()


def test_several_threads_calibrate_once(open_dial, clock):
    dial = open_dial()
    barrier = threading.Barrier(4)

    def work():
        barrier.wait()
        dial.run(images(), milliseconds=5)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(clock.calls) == 18 + 4
