"""Two processes equal one with the joined batch; none hangs when another stops; only the first one writes."""

import json
import os
import signal
import socket
import subprocess
import sys
import time

import pytest
import torch
import torch.distributed as dist
from torch import nn

import tiny
from recurconv import cli, tasks, training
from recurconv.distributed import CrossRankBatchNorm2d, on_all_ranks, on_any_rank
from recurconv.objectives import draw_plan
from recurconv.runs import RunFolder
from recurconv.training import Trainer


def ranks(target, *arguments, seconds=60):
    """The exit statuses of ``target`` on two ranks, as torchrun would start them; each within ``seconds``."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    common = {"WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2, "GROUP_RANK": 0, "GROUP_WORLD_SIZE": 1, "MASTER_PORT": port}
    common |= {"MASTER_ADDR": "localhost", "TORCHELASTIC_RUN_ID": "test"}
    started = []
    for rank in range(2):
        env = {key: str(value) for key, value in {**common, "RANK": rank, "LOCAL_RANK": rank}.items()}
        started.append(tiny.start(target, rank, *arguments, env=env))
    end = time.monotonic() + seconds
    for process in started:
        process.join(max(0, end - time.monotonic()))
    hanging = [rank for rank, process in enumerate(started) if process.exitcode is None]
    for rank in hanging:
        started[rank].kill()
    assert not hanging, f"these ranks hang: {hanging}"
    return [process.exitcode for process in started]


def assert_equals_one_process(config, data, out):
    """Weights and running statistics to 1e-5, and every line of metrics.jsonl."""
    one = tiny.train(config, data, out.with_name("one")).path
    alone, together = tiny.weights(one), tiny.weights(out)
    assert alone.keys() == together.keys()
    for name, tensor in alone.items():
        assert together[name].allclose(tensor, rtol=1e-5, atol=1e-5), f"{name}: {(together[name] - tensor).abs().max()}"
    a, b = tiny.rows(one), tiny.rows(out)
    assert len(a) == len(b) == config.epochs
    for row, other in zip(a, b, strict=True):
        assert row.pop("loss") == pytest.approx(other.pop("loss"), rel=1e-5)
        for key in row:
            assert row[key] == pytest.approx(other[key]), key


# Two equal one


def test_the_command_under_torchrun_equals_one_process(tmp_path):
    photos, out = tiny.picture_folder(tmp_path / "photos", count=7), tmp_path / "run"
    config = tiny.recipe("size=10", "workers=0", "epochs=3", "minival=1", name="r2-folder")
    steps = {draw_plan(config, iteration, 2)[0].steps for iteration in range(6)}
    assert len(steps) > 1
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2", "-m"]
    command = ["recurconv", "train", config.name, "--data", photos, "--out", out, *tiny.as_arguments(config)]
    done = subprocess.run([*launcher, *map(str, command)], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("held-out error") == 3  # one rank speaks
    assert done.stderr.count("training ") == 1
    assert "Warning" not in done.stderr
    assert json.loads((out / "environment.json").read_text())[0]["processes"] == 2
    assert_equals_one_process(config, photos, out)


def train_here(rank, config, data, out):
    writes = []
    if rank == 1:
        sys.addaudithook(lambda event, a: writes.append(a) if _writes(event, a) and str(out) in str(a[0]) else None)
    tiny.train(config, data, out)
    assert not writes


def _writes(event, arguments):
    if event == "open":
        return arguments[1] is None or any(letter in str(arguments[1]) for letter in "wax+")
    return event in ("os.mkdir", "os.rename", "os.remove", "os.chmod")


@pytest.mark.parametrize(
    "settings",
    [
        ["epochs=3", "clip=0.3"],
        ["sampling=sandwich", "rate=0.02"],
        ["width=0.25", "network=r4", "steps=1,2,3", "probabilities=", "rate=0.002", "sampling=weighted", "epochs=1"],
    ],
    ids=["unified", "sandwich", "r4, weighted"],
)
def test_two_ranks_equal_one_process(settings, tmp_path):
    """Only the first one writes: the other looks."""
    config = tiny.recipe(*settings)
    assert ranks(train_here, config, "tiny", tmp_path / "run") == [0, 0]
    assert_equals_one_process(config, "tiny", tmp_path / "run")


def test_two_ranks_train_in_bf16(tmp_path):
    config = tiny.recipe("precision=bf16", "epochs=1")
    assert ranks(train_here, config, "tiny", tmp_path / "run") == [0, 0]
    alone = tiny.weights(tiny.train(config, "tiny", tmp_path / "one").path)
    for name, tensor in tiny.weights(tmp_path / "run").items():
        torch.testing.assert_close(
            tensor, alone[name], rtol=0.05, atol=0.05, msg=lambda text, name=name: f"{name}: {text}"
        )


def test_a_denoiser_on_two_ranks_equals_one_process(tmp_path):
    pictures, config = tiny.gray_pictures(tmp_path / "pictures"), tiny.denoising("optimizer=sgd", "rate=0.01")
    assert ranks(train_here, config, pictures, tmp_path / "run") == [0, 0]
    assert_equals_one_process(config, pictures, tmp_path / "run")


def die_at(rank, config, out, iteration):
    training.SAVE_SECONDS = -1
    step = Trainer.step

    def stepping(self, inputs, targets):
        if self.iteration == iteration:
            dist.barrier()
            os.kill(os.getpid(), signal.SIGKILL)
        step(self, inputs, targets)

    Trainer.step = stepping
    tiny.train(config, "tiny", out)


def resume_here(rank, config, out):
    tiny.train(config, "tiny", out, resume=True)


def test_two_ranks_resume(tmp_path):
    config = tiny.recipe()
    assert ranks(die_at, config, tmp_path / "run", 4)[0] == -signal.SIGKILL
    assert RunFolder(tmp_path / "run").load_state()["iteration"] == 4
    assert ranks(resume_here, config, tmp_path / "run") == [0, 0]
    assert_equals_one_process(config, "tiny", tmp_path / "run")


def look_at_gradients(rank):
    trainer = tiny.trainer(tiny.recipe(), choices=False)
    assert sum(isinstance(module, CrossRankBatchNorm2d) for module in trainer.network.modules()) == 36
    assert sorted(trainer.network.state_dict()) == sorted(tiny.rc_untrained(trainer.recipe).state_dict())
    for inputs, targets in trainer._batches():
        assert len(inputs) == 4
        trainer.step(inputs, targets)
        steps = trainer.window[-1].plan[0].steps
        for name, parameter in trainer.network.named_parameters():
            unused = ".bank." in name and f".row{steps}_" not in name
            assert (parameter.grad is None) == unused, name
            if parameter.grad is not None:
                both = [torch.empty_like(parameter.grad) for _ in range(2)]
                dist.all_gather(both, parameter.grad.contiguous())
                assert both[0].equal(both[1]), name
        drawn = [None, None]
        dist.all_gather_object(drawn, (trainer.window[-1].plan, float(trainer.window[-1].loss)))
        assert drawn[0] == drawn[1]


def test_ranks_draw_alike_and_leave_unused_groups_without_gradient():
    assert ranks(look_at_gradients) == [0, 0]


def compare_batch_norm(rank):
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    x, weight = torch.randn(6, 3, 5, 4, dtype=torch.float64), torch.randn(6, 3, 5, 4, dtype=torch.float64)
    for options in ({}, {"affine": False}, {"momentum": None}, {"track_running_stats": False}):
        plain, cross = nn.BatchNorm2d(3, **options).double(), CrossRankBatchNorm2d(3, **options).double()
        for _ in range(2):
            whole, share = x.clone().requires_grad_(), x[3 * rank : 3 * rank + 3].clone().requires_grad_()
            expected, got = plain(whole), cross(share)
            torch.testing.assert_close(got, expected[3 * rank : 3 * rank + 3])
            (expected * weight).sum().backward()
            (got * weight[3 * rank : 3 * rank + 3]).sum().backward()
            torch.testing.assert_close(share.grad, whole.grad[3 * rank : 3 * rank + 3])
        torch.testing.assert_close(cross.state_dict(), plain.state_dict())
        torch.testing.assert_close(cross.eval()(x), plain.eval()(x))
    low = x.bfloat16()  # as under autocast: statistics are taken in float32, and kept so
    plain, cross = nn.BatchNorm2d(3), CrossRankBatchNorm2d(3)
    expected, got = plain(low.float()), cross(low[3 * rank : 3 * rank + 3])
    assert got.dtype == torch.bfloat16
    torch.testing.assert_close(got.float(), expected[3 * rank : 3 * rank + 3], rtol=0, atol=0.02)
    torch.testing.assert_close(cross.state_dict(), plain.state_dict())


def test_batch_norm_over_ranks_is_that_of_the_joined_batch():
    assert ranks(compare_batch_norm) == [0, 0]


# Where one stops, all stop


def command_here(rank, folder, arguments, prepare=None):
    """``recurconv`` as torchrun runs it; what it says goes into a file for each rank."""
    file = os.open(folder / f"said{rank}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(file, 1)
    os.dup2(file, 2)
    sys.argv = ["recurconv", *map(str, arguments)]
    if prepare is not None:
        prepare(rank)
    with tiny.tiny_data():
        cli.main()


def last_lines(folder):
    return [(folder / f"said{rank}").read_text().splitlines()[-1] for rank in range(2)]


def arguments(config, out, data="tiny"):
    return ["train", config.name, "--data", data, "--out", out, "--quiet", *tiny.as_arguments(config)]


def test_an_existing_folder_stops_all_ranks(tmp_path):
    out = tmp_path / "run"
    out.mkdir()
    (out / "mine").touch()
    assert ranks(command_here, tmp_path, arguments(tiny.recipe(), out)) == [2, 2]
    refused = f"{out} is not an empty folder; choose another"
    assert last_lines(tmp_path) == [f"recurconv: {refused}", f"recurconv: rank 0 failed: {refused}"]
    assert [path.name for path in out.iterdir()] == ["mine"]


def without_data(rank):
    if rank == 1:
        tiny.load_tiny = missing


def missing(*arguments, **options):
    raise FileNotFoundError("no data on this machine")


def test_data_that_one_rank_does_not_have_stops_all_before_anything_is_written(tmp_path):
    assert ranks(command_here, tmp_path, arguments(tiny.recipe(), tmp_path / "run"), without_data) == [2, 2]
    said = last_lines(tmp_path)
    assert said == ["recurconv: rank 1 failed: no data on this machine", "recurconv: no data on this machine"]
    assert not (tmp_path / "run").exists()


def test_a_batch_that_cannot_be_shared_stops_all(tmp_path):
    assert ranks(command_here, tmp_path, arguments(tiny.recipe("batch_size=7"), tmp_path / "run")) == [2, 2]
    assert "batch_size=7 cannot be shared by 2 ranks" in last_lines(tmp_path)[0]
    assert not (tmp_path / "run").exists()


def break_one(rank):
    step = Trainer.step

    def stepping(self, inputs, targets):
        step(self, inputs * torch.nan if rank == 1 and self.iteration == 4 else inputs, targets)

    Trainer.step = stepping


def test_nan_on_one_rank_stops_all_with_the_same_message(tmp_path):
    assert ranks(command_here, tmp_path, arguments(tiny.recipe(), tmp_path / "run"), break_one) == [1, 1]
    said = last_lines(tmp_path)
    assert said[0] == said[1]
    assert "the loss is nan at iteration 5, steps=" in said[0]
    assert RunFolder(tmp_path / "run").load_state()["iteration"] == 3


def interrupt_one(rank):
    step = Trainer.step

    def stepping(self, inputs, targets):
        step(self, inputs, targets)
        if rank == 1 and self.iteration == 4:
            os.kill(os.getpid(), signal.SIGINT)

    Trainer.step = stepping


def test_ctrl_c_that_reaches_one_rank_stops_all_at_the_same_iteration(tmp_path):
    config, out = tiny.recipe(), tmp_path / "run"
    assert ranks(command_here, tmp_path, arguments(config, out), interrupt_one) == [130, 130]
    said = last_lines(tmp_path)
    assert said[0] == said[1]
    assert "stopped at iteration 4 of 6" in said[0]
    assert RunFolder(out).load_state()["iteration"] == 4


def kill_one(rank):
    step = Trainer.step

    def stepping(self, inputs, targets):
        step(self, inputs, targets)
        if rank == 1 and self.iteration == 4:
            os.kill(os.getpid(), signal.SIGKILL)

    Trainer.step = stepping


def test_a_rank_that_dies_does_not_leave_the_other_hanging(tmp_path):
    statuses = ranks(command_here, tmp_path, arguments(tiny.recipe(), tmp_path / "run"), kill_one)
    assert statuses[1] == -signal.SIGKILL
    assert statuses[0] not in (0, None)
    assert RunFolder(tmp_path / "run").load_state()["iteration"] == 3


def slow_measure(rank):
    measure = tasks.Classification.measure

    def slow(self, network, steps):
        assert rank == 0
        time.sleep(0.5)
        return measure(self, network, steps)

    tasks.Classification.measure = slow


def test_the_first_rank_measures_while_the_others_wait(tmp_path):
    config = tiny.recipe("epochs=1")
    assert ranks(command_here, tmp_path, arguments(config, tmp_path / "run"), slow_measure) == [0, 0]
    assert len(tiny.rows(tmp_path / "run")) == 1


# One process


def test_alone_all_ranks_are_this_one():
    assert on_all_ranks(lambda: 3) == 3
    assert on_any_rank(True, torch.device("cpu"))
    assert not on_any_rank(False, torch.device("cpu"))
    with pytest.raises(KeyError, match="own"):
        on_all_ranks(lambda: {}["own"])
