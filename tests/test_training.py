"""The loop: against one written by hand, law 3, the schedule, and what a run says and leaves."""

import concurrent.futures
import copy
import json
import math
import signal

import pytest
import torch
import torch.nn.functional as F

import recurconv as rc
import tiny
from recurconv.distributed import make_fabric, wants_bf16
from recurconv.objectives import draw_plan
from recurconv.optimisation import rate_factor, restore_optimizer
from recurconv.training import Trainer

# The narrowest R_4 to train on a CPU: below 8 channels with AVX2, maybe 16 with AVX-512, oneDNN (PyTorch 2.14) writes
# past the end of the weight gradient of the 1x1 convolutions of stride 2 in channels_last, and corrupts memory.
NARROW = 0.25


def run(trainer, iterations):
    """Take so many iterations, over as many epochs as it needs."""
    while True:
        for inputs, targets in trainer._batches():
            if iterations == 0:
                return
            trainer.step(inputs, targets)
            iterations -= 1
            yield draw_plan(trainer.recipe, trainer.iteration - 1, len(trainer.network.cells()))[0].steps


# The whole step, against a loop written by hand

SGD = {
    "momentum, clipping, warm-up, linear": (
        ["rate=0.3", "clip=0.5", "warmup=0.25", "epochs=4", "label_smoothing=0.1"],
        [1 / 4, 2 / 4, 3 / 4, 1, 8 / 9, 7 / 9, 6 / 9, 5 / 9, 4 / 9],
    ),
    "no momentum, no clipping, no warm-up, cosine": (
        ["rate=0.05", "clip=0", "warmup=0", "momentum=0", "decay=cosine", "epochs=3"],
        [(1 + math.cos(math.pi * i / 9)) / 2 for i in range(9)],
    ),
    "ratio 0.1, no weight decay": (
        ["shared_ratio=0.1", "weight_decay=0", "warmup=0", "epochs=3"],
        [1 - i / 9 for i in range(9)],
    ),
}


@pytest.mark.parametrize("case", SGD)
def test_an_iteration_equals_a_loop_written_by_hand_bit_for_bit(case):
    settings, factors = SGD[case]
    trainer = tiny.trainer(tiny.recipe(*settings), choices=False)
    recipe, net = trainer.recipe, copy.deepcopy(trainer.network)
    kernels = [parameter for name, parameter in net.named_parameters() if ".body." in name]
    others = [parameter for name, parameter in net.named_parameters() if ".body." not in name]
    assert len(kernels) == 4
    sgd = torch.optim.SGD(
        [{"params": others}, {"params": kernels}],
        lr=0,
        momentum=recipe.momentum,
        nesterov=recipe.momentum > 0,
        weight_decay=recipe.weight_decay,
    )
    clipped = []
    for number, steps in enumerate(run(trainer, 9)):
        epoch, start = divmod(number, 3)
        images, labels = next(trainer.task.training_batches(epoch, start, 0, 1))
        sgd.zero_grad()
        loss = F.cross_entropy(
            net(images.to(memory_format=torch.channels_last), steps), labels, label_smoothing=recipe.label_smoothing
        )
        loss.backward()
        norm = torch.linalg.vector_norm(torch.cat([p.grad.flatten() for p in net.parameters() if p.grad is not None]))
        if recipe.clip:
            torch.nn.utils.clip_grad_norm_(net.parameters(), recipe.clip)
            clipped.append(bool(norm > recipe.clip))
        sgd.param_groups[0]["lr"] = recipe.rate * factors[number]
        sgd.param_groups[1]["lr"] = recipe.rate * recipe.shared_ratio * factors[number]
        sgd.step()
        done = trainer.window[-1]
        assert done.iteration == number + 1
        assert done.loss == loss
        torch.testing.assert_close(done.norm, norm)
        assert tiny.same(trainer.network.state_dict(), net.state_dict()), f"iteration {number + 1}, steps={steps}"
    assert any(clipped) == bool(recipe.clip)


def test_adam_equals_a_loop_written_by_hand_bit_for_bit(tmp_path):
    config = tiny.denoising("epochs=3", "shared_ratio=0.3", "warmup=0", "decay=cosine")
    trainer = tiny.trainer(config, tiny.gray_pictures(tmp_path), choices=False)
    net = copy.deepcopy(trainer.network)
    kernels = [parameter for name, parameter in net.named_parameters() if ".body." in name]
    others = [parameter for name, parameter in net.named_parameters() if ".body." not in name]
    adam = torch.optim.Adam([{"params": others}, {"params": kernels}])
    for number, steps in enumerate(run(trainer, 9)):
        noisy, clean = next(trainer.task.training_batches(*divmod(number, 3), 0, 1))
        adam.zero_grad()
        loss = (net(noisy.to(memory_format=torch.channels_last), steps) - clean).square().mean() / (25 / 255) ** 2
        loss.backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        factor = (1 + math.cos(math.pi * number / 9)) / 2
        adam.param_groups[0]["lr"], adam.param_groups[1]["lr"] = 1e-3 * factor, 1e-3 * 0.3 * factor
        adam.step()
        assert tiny.same(trainer.network.state_dict(), net.state_dict()), f"iteration {number + 1}, steps={steps}"


# Law 3


def used_groups(network, steps):
    """The prefixes of the groups that the paper's B_s names, written out per network."""
    if isinstance(steps, tuple):  # a count for each of two cells: rows of the second are the first one's counts
        first, second = steps
        yield from (f"cell1.bank.row{first}_step{t}." for t in range(first))
        yield from (f"cell2.bank.row{first}_step{t}." for t in range(second))
        return
    cells = {"r2": 2, "r3": 3, "r4": 4}[network]
    yield from (f"cell{cell}.bank.row{steps}_step{t}." for cell in range(1, cells + 1) for t in range(steps))
    if network == "r4":
        yield "transition1.bank."
        yield from (f"transition{number}.bank.row{steps}_step0." for number in (2, 3, 4))


@pytest.mark.parametrize(
    ("network", "settings"),
    [
        ("r2", []),
        ("r2", ["sampling=per-cell"]),
        ("r4", [f"width={NARROW}", "network=r4", "steps=1,2,3", "probabilities="]),
        ("r3", []),
        ("r3", ["optimizer=sgd", "weight_decay=0.01"]),
    ],
)
def test_an_iteration_changes_the_groups_of_its_row_below_its_step_and_no_others(network, settings, tmp_path):
    if network == "r3":
        data, config = tiny.gray_pictures(tmp_path), tiny.denoising("epochs=6", *settings)
    else:
        data, config = "tiny", tiny.recipe("epochs=6", "weight_decay=0.01", *settings)
    trainer = tiny.trainer(config, data, choices=False)
    net, seen = trainer.network, set()
    names = {parameter: name for name, parameter in net.named_parameters()}

    def optimizer_state():
        return {
            f"{names[parameter]} {key}": value.clone()
            for parameter, state in trainer.optimizer.state.items()
            for key, value in state.items()
        }

    weights, momenta = tiny.snapshot(net), optimizer_state()
    for steps in run(trainer, 14):
        seen.add(steps)
        groups = tuple(used_groups(network, steps))
        changed = {name for name, tensor in net.state_dict().items() if not torch.equal(tensor, weights[name])}
        expected = {name for name in weights if "bank" not in name or name.startswith(groups)}
        assert changed == expected - {"normalize.mean", "normalize.std"}, f"steps={steps}"
        new = optimizer_state()
        moved = {key.split()[0] for key, value in new.items() if key not in momenta or not value.equal(momenta[key])}
        assert moved == {name for name in names.values() if name in expected}, f"steps={steps}"
        weights, momenta = tiny.snapshot(net), new
    assert len(seen) >= 3  # groups were left alone after iterations in which they had momentum


@pytest.mark.parametrize(
    ("norm", "groups"), [("independent", {2: ["step0", "step1"], 3: ["step0", "step1", "step2"]}), ("shared", None)]
)
def test_other_norm_usages_change_what_they_share(norm, groups):
    trainer = tiny.trainer(tiny.recipe(f"norm={norm}", "steps=2,3", "probabilities=", "epochs=4"), choices=False)
    before, seen = tiny.snapshot(trainer.network), set()
    for steps in run(trainer, 8):
        seen.add(steps)
        now = trainer.network.state_dict()
        changed = {name.split(".")[2] for name in now if ".bank." in name and not now[name].equal(before[name])}
        assert changed == set(groups[steps] if groups else ["shared"])
        before = tiny.snapshot(trainer.network)
    assert seen == {2, 3}


# The update's parts


@pytest.mark.parametrize(
    ("warmup", "decay", "expected"),
    [
        (0.0, "linear", [1, 0.8, 0.6, 0.4, 0.2]),
        (0.4, "linear", [1 / 3, 2 / 3, 1, 2 / 3, 1 / 3]),
        (0.4, "cosine", [1 / 3, 2 / 3, 1, 0.75, 0.25]),
        (0.99, "linear", [1 / 6, 2 / 6, 3 / 6, 4 / 6, 5 / 6]),
    ],
)
def test_the_rate_over_a_run(warmup, decay, expected):
    recipe = tiny.recipe(f"warmup={warmup}", f"decay={decay}")
    assert [rate_factor(recipe, i, 5) for i in range(5)] == pytest.approx(expected)


@pytest.mark.parametrize("name", ["r2-cifar10", "s2-cifar10"])
def test_only_shared_kernels_learn_at_the_ratio(name):
    trainer = tiny.trainer(tiny.recipe("shared_ratio=0.25", name=name), choices=False)
    rates = {id(p): group["rate"] for group in trainer.optimizer.param_groups for p in group["params"]}
    assert len(rates) == len(list(trainer.network.parameters()))
    for parameter_name, parameter in trainer.network.named_parameters():
        shared = name.startswith("r") and ".body." in parameter_name
        assert rates[id(parameter)] == pytest.approx(0.05 * (0.25 if shared else 1)), parameter_name


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_the_fused_optimiser_takes_groups_that_come_late(optimizer):
    """As on a GPU, where it is fused: a norm group has no gradient before its first iteration."""
    config = tiny.recipe(f"optimizer={optimizer}", "rate=0.01")
    plain, fused = tiny.trainer(config, choices=False), tiny.trainer(config, choices=False)
    for group in fused.optimizer.param_groups:
        group["fused"], group["foreach"] = True, False
    assert len({*run(plain, 6)}) > 1
    assert len({*run(fused, 6)}) > 1
    for name, tensor in plain.network.state_dict().items():
        torch.testing.assert_close(fused.network.state_dict()[name], tensor, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize("fused", [False, True], ids=["onto a CPU", "onto a GPU"])
def test_an_optimiser_state_goes_from_one_device_to_another(optimizer, fused):
    """Where the other one fuses its updates; and from runs that made momentum buffers only when they were needed."""
    config = tiny.recipe(f"optimizer={optimizer}", "rate=0.01")
    before, after, undisturbed = (tiny.trainer(config, choices=False) for _ in range(3))
    for group in before.optimizer.param_groups:
        group["fused"] = not fused
    for group in after.optimizer.param_groups:
        group["fused"] = fused
    assert list(run(before, 3))
    state = before.optimizer.state_dict()
    state["state"] = {k: v for k, v in state["state"].items() if any(value.any() for value in v.values())}
    after.network.load_state_dict(before.network.state_dict())
    restore_optimizer(after.optimizer, state)
    assert {group["fused"] for group in after.optimizer.param_groups} == {fused}
    after.iteration = 3
    assert list(run(after, 3))
    assert len({*run(undisturbed, 6)}) > 1
    for name, tensor in undisturbed.network.state_dict().items():
        torch.testing.assert_close(after.network.state_dict()[name], tensor, rtol=1e-4, atol=1e-5)


def test_bf16_runs_where_asked_for_and_is_not_chosen_without_hardware(monkeypatch):
    trainer = tiny.trainer(tiny.recipe("precision=bf16"), choices=False)
    inside = []
    trainer.network.head.linear.register_forward_hook(lambda module, args, out: inside.append(out.dtype))
    assert list(run(trainer, 1))
    assert inside == [torch.bfloat16]
    assert {tensor.dtype for tensor in trainer.network.parameters()} == {torch.float32}
    assert math.isfinite(trainer.check())
    exact = tiny.trainer(tiny.recipe("precision=fp32"), choices=False)
    assert list(run(exact, 1))
    assert exact.check() == pytest.approx(F.cross_entropy(*first_logits()).item(), rel=1e-6)
    for capabilities, precision in (({"avx2": True}, "fp32"), ({"avx512_bf16": True}, "bf16")):
        monkeypatch.setattr(torch.cpu, "get_capabilities", lambda told=capabilities: told)
        kind = make_fabric("cpu", "auto")._precision.precision
        assert kind == {"fp32": "32-true", "bf16": "bf16-mixed"}[precision]
    # PyTorch says of GPUs that only emulate it that they have it, too, unless it is asked.
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation=True: including_emulation)
    assert not wants_bf16("auto", "cuda")


def first_logits():
    """Logits and labels of the first iteration."""
    trainer = tiny.trainer(tiny.recipe(), choices=False)
    images, labels = next(trainer._batches())
    return trainer.network(images, draw_plan(trainer.recipe, 0, 2)[0].steps), labels


# A run from end to end


def test_a_run_leaves_what_can_be_loaded_and_says_what_it_was(tmp_path):
    config = tiny.recipe()
    run_folder = tiny.train(config, "tiny", tmp_path / "run")
    assert {path.name for path in run_folder.path.iterdir()} == {
        *("recipe.json", "environment.json", "metrics.jsonl", "config.json", "model.safetensors", "trainer_state.pt")
    }
    net = rc.load(tmp_path / "run")
    assert net.class_names == tiny.CLASSES
    assert net.normalize.mean.flatten().tolist() == pytest.approx([0.3] * 3)
    rows = tiny.rows(tmp_path / "run")
    assert [(row["epoch"], row["iteration"]) for row in rows] == [(1, 3), (2, 6)]
    assert rows[1]["rate"] == pytest.approx(0.05 / 5)  # 6 iterations, one of warm-up
    images, labels = tiny.load_tiny("tiny", "cifar10", "minival", minival=9).images, torch.arange(9) % 3
    for steps in net.dial:
        wrong = (net(images.float() / 255, steps).argmax(1) != labels).float().mean() * 100
        assert rows[-1]["held_out error (%)"][str(steps)] == pytest.approx(float(wrong))
    (entry,) = json.loads((tmp_path / "run" / "environment.json").read_text())
    assert entry["condition"] == "tiny"
    assert (entry["device"], entry["precision"], entry["processes"], entry["iteration"]) == ("cpu", "fp32", 1, 0)
    assert entry["torch"] == torch.__version__
    assert entry["recurconv"] == rc.__version__
    assert all(entry[key] for key in ("date", "python", "torchvision", "lightning", "numpy", "processor", "threads"))
    assert run_folder.recipe() == config


def test_the_loss_of_an_epoch_is_the_mean_over_its_iterations(tmp_path):
    tiny.train(tiny.recipe("epochs=1"), "tiny", tmp_path / "run")
    trainer = tiny.trainer(tiny.recipe("epochs=1"), choices=False)
    assert list(run(trainer, 3))
    losses = [float(done.loss) for done in trainer.window]
    assert tiny.rows(tmp_path / "run")[0]["loss"] == pytest.approx(sum(losses) / 3)


@pytest.mark.parametrize("minival", [0, 9])
def test_without_held_out_images_a_run_trains_on_all(minival, tmp_path, monkeypatch):
    opened, load = [], tiny.load_tiny

    def loading(path, kind, split, **how):
        opened.append(split)
        return load(path, kind, split, **how)

    monkeypatch.setattr(tiny, "load_tiny", loading)
    tiny.train(tiny.recipe(f"minival={minival}", "epochs=1"), "tiny", tmp_path / "run")
    assert opened == (["train", "minival"] if minival else ["trainval"])
    assert ("held_out error (%)" in tiny.rows(tmp_path / "run")[0]) == bool(minival)


def test_the_last_checkpoint_is_saved_once(tmp_path, monkeypatch):
    saved = []
    save = Trainer.save
    monkeypatch.setattr(Trainer, "save", lambda self: saved.append(self.iteration) or save(self))
    tiny.train(tiny.recipe(), "tiny", tmp_path / "run")
    assert saved == [3, 6]


def test_a_denoiser_learns(tmp_path):
    pictures = tiny.gray_pictures(tmp_path / "pictures")
    config = tiny.denoising("steps=1,2", "channels=16", "epochs=3", "rate=0.01", "patch=12", "patches_per_epoch=80")
    tiny.train(config, pictures, tmp_path / "run")
    rows = tiny.rows(tmp_path / "run")
    assert rows[-1]["loss"] < 0.5 * rows[0]["loss"]
    psnr = rows[-1]["held_out PSNR (dB)"]
    assert set(psnr) == {"1", "2"}
    assert all(21 < value < 40 for value in psnr.values())  # sigma 25 alone is 20.2 dB
    assert rc.load(tmp_path / "run")(torch.rand(1, 1, 9, 9)).shape == (1, 1, 9, 9)


def test_a_folder_of_images_keeps_its_class_names_and_size(tmp_path):
    config = tiny.recipe("size=10", "batch_size=8", "workers=0", "epochs=1", "minival=1", name="r2-folder")
    tiny.train(config, tiny.picture_folder(tmp_path / "photos"), tmp_path / "run")
    stored = json.loads((tmp_path / "run" / "config.json").read_text())
    assert stored["arguments"]["class_names"] == list(tiny.CLASSES)
    assert stored["arguments"]["image_size"] == 10
    assert stored["arguments"]["num_classes"] == 3
    assert set(tiny.rows(tmp_path / "run")[0]["held_out error (%)"]) == {"2", "3", "4"}


def test_the_deeply_supervised_network_trains_all_its_classifiers(tmp_path):
    settings = [f"width={NARROW}", "data=cifar10", "epochs=4", "rate=0.1"]
    config = tiny.recipe(*settings, name="deeply-supervised-s4-cifar100")
    tiny.train(config, "tiny", tmp_path / "run")
    rows = tiny.rows(tmp_path / "run")
    assert set(rows[-1]["held_out error (%)"]) == {"2", "3", "4"}
    assert rows[-1]["loss"] < rows[0]["loss"]
    start = tiny.trainer(config, choices=False).network.state_dict()
    end = rc.load(tmp_path / "run").state_dict()
    still = {name for name in start if start[name].equal(end[name])}
    assert still == {"normalize.mean", "normalize.std"}


def test_a_run_in_a_thread_of_a_program(tmp_path):
    """Python lets only the main thread handle Ctrl-C; training elsewhere leaves it alone."""
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        before = signal.getsignal(signal.SIGINT)
        pool.submit(tiny.train, tiny.recipe("epochs=1"), "tiny", tmp_path / "run").result()
    assert signal.getsignal(signal.SIGINT) is before
    assert len(tiny.rows(tmp_path / "run")) == 1


def test_ctrl_c_is_what_it_was_after_a_run(tmp_path):
    handler = signal.getsignal(signal.SIGINT)
    tiny.train(tiny.recipe("epochs=1"), "tiny", tmp_path / "run")
    assert signal.getsignal(signal.SIGINT) is handler
