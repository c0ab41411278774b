"""Saving and loading: round trips, and what is said of files that do not fit."""

import json
import os
import re
import stat

import pytest
import safetensors.torch
import torch
from torch import nn

import recurconv as rc
from recurconv import files
from recurconv.network import BUILDERS
from small import different, same, small

ARGUMENTS = {
    "r2": {"width": 1 / 16, "num_classes": 3, "class_names": ("cat", "dog", "eel"), "mean": (0.1, 0.2, 0.3)},
    "s2": {"width": 1 / 16, "steps": 2},
    "r3": {"channels": 4, "steps": (1, 3), "unified": False},
    "s3": {"channels": 4},
    "r3_half": {"channels": 4, "image_channels": 3},
    "r4": {"width": 1 / 16, "norm": "independent"},
    "s4": {"width": 1 / 16, "steps": 1},
    "deeply_supervised_s4": {"width": 1 / 16, "image_channels": 1},
}


@pytest.fixture
def folder(tmp_path):
    different(small()).save_pretrained(tmp_path / "model")
    return tmp_path / "model"


# --- round trips


def test_every_builder_has_a_round_trip_below():
    assert set(ARGUMENTS) == set(BUILDERS)


@pytest.mark.parametrize("name", ARGUMENTS)
def test_load_gives_back_what_save_pretrained_wrote(name, tmp_path):
    net = different(getattr(rc, name)(**ARGUMENTS[name])).train()
    net.save_pretrained(tmp_path)
    before = torch.random.get_rng_state()
    loaded = rc.load(tmp_path)
    assert torch.equal(torch.random.get_rng_state(), before)
    assert type(loaded) is type(net)
    assert not loaded.training
    assert same(loaded.state_dict(), net.state_dict())
    assert (loaded.config, loaded.dial, loaded.class_names) == (net.config, net.dial, net.class_names)
    assert all(parameter.requires_grad for parameter in loaded.parameters())
    x = torch.rand(2, net.image_channels, 8, 8)
    assert all(torch.equal(loaded(x, steps), net.eval()(x, steps)) for steps in net.dial)
    loaded.train()(x).sum().backward()


def test_the_files_are_plain_safetensors_and_json(tmp_path):
    net = small().to(memory_format=torch.channels_last)
    net.save_pretrained(tmp_path)
    assert sorted(os.listdir(tmp_path)) == ["config.json", "model.safetensors"]
    written = safetensors.torch.load_file(tmp_path / "model.safetensors")
    assert same({name: written.pop(name) for name in net.state_dict()}, net.state_dict())
    assert not written
    config = json.loads((tmp_path / "config.json").read_text())
    assert config == {**net.config, "recurconv": rc.__version__}


def test_the_dtype_is_that_of_the_file(tmp_path):
    net = different(small()).to(torch.bfloat16)
    net.save_pretrained(tmp_path)
    assert same(rc.load(tmp_path).state_dict(), net.state_dict())


def test_a_run_folder_with_more_files_and_more_in_its_config_loads(folder):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "note": "more"}))
    (folder / "metrics.jsonl").write_text("{}\n")
    assert rc.load(str(folder)).dial == (1, 2)


def test_saving_again_replaces_both_files_and_leaves_nothing_beside_them(folder):
    net = different(rc.r3(channels=2))
    net.save_pretrained(folder)
    assert sorted(os.listdir(folder)) == ["config.json", "model.safetensors"]
    assert same(rc.load(folder).state_dict(), net.state_dict())


def test_written_files_have_the_permissions_of_any_new_file(folder):
    plain = folder / "plain"
    plain.write_text("")
    modes = {stat.S_IMODE((folder / name).stat().st_mode) for name in ("plain", "config.json", "model.safetensors")}
    assert len(modes) == 1


def test_a_write_that_fails_leaves_the_old_file(tmp_path):
    path = tmp_path / "deep" / "file"
    files.write_atomically(path, lambda temporary: temporary.write_text("old"))

    def full(temporary):
        temporary.write_text("ne")
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space left"):
        files.write_atomically(path, full)
    assert path.read_text() == "old"
    assert os.listdir(path.parent) == ["file"]


def test_a_network_without_a_config_says_so(tmp_path):
    class Mine(rc.Network):
        pass

    with pytest.raises(ValueError, match=r"Mine was not made by a builder such as recurconv\.r2; save its state_dict"):
        Mine((1,)).save_pretrained(tmp_path)


def test_from_pretrained_is_load_for_a_class(folder):
    loaded = rc.Network.from_pretrained(folder)
    assert same(loaded.state_dict(), rc.load(folder).state_dict())
    assert type(type(loaded).from_pretrained(folder)) is type(loaded)
    denoiser = type(rc.r3(channels=2))
    with pytest.raises(TypeError, match=r"holds a TwoCellClassifier, not a Denoiser; use recurconv\.load"):
        denoiser.from_pretrained(folder)


# --- state dicts that do not fit


def test_missing_unexpected_and_reshaped_tensors_are_all_named_with_both_dials():
    net = small(steps=(1, 2, 3))
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    state = dict(different(small(steps=(1, 2), num_classes=7)).state_dict())
    state["extra.weight"] = torch.zeros(2)
    del state["stem.weight"]
    with pytest.raises(ValueError, match="do not fit") as caught:
        net.load_state_dict(state)
    message = str(caught.value)
    assert "dial of the file: (1, 2); of the network: (1, 2, 3)" in message
    missing = re.search(r"(\d+) missing: ([^;]*)", message)
    expected = {name for name in net.state_dict() if "row3" in name} | {"stem.weight"}
    assert set(missing[2].split(", ")) == expected
    assert int(missing[1]) == len(expected)
    assert "1 unexpected: extra.weight" in message
    assert message.endswith(
        "2 of another shape: head.linear.weight [7, 16] instead of [10, 16], head.linear.bias [7] instead of [10]"
    )
    assert "\n" not in message
    assert same(net.state_dict(), before)  # nothing was loaded


@pytest.mark.parametrize(
    ("build", "dial"),
    [
        (lambda: small(steps=(2, 5)), r"\(2, 5\)"),
        (lambda: small(steps=3), "up to 3"),
        (lambda: rc.s2(width=1 / 16, steps=3), r"\(3,\), untied"),
        (lambda: small(norm="shared"), "not told by its names"),
        (lambda: rc.r4(width=1 / 16, steps=(1, 4)), r"\(1, 4\)"),
    ],
)
def test_the_dial_of_a_file_is_read_from_its_names(build, dial):
    with pytest.raises(ValueError, match=rf"dial of the file: {dial}; of the network: \(7, 8\)"):
        small(steps=(7, 8)).load_state_dict(build().state_dict())


def test_loading_loosely_is_refused():
    net = small()
    with pytest.raises(ValueError, match="strict=False would hide missing tensors"):
        net.load_state_dict(net.state_dict(), strict=False)


# --- prefixes


class Wrapped(nn.Module):
    """Names as DistributedDataParallel gives them, without processes."""

    def __init__(self, module):
        super().__init__()
        self.module = module


WRAPPERS = {
    "DDP": Wrapped,
    "torch.compile": torch.compile,
    "DDP of torch.compile": lambda net: Wrapped(torch.compile(net)),
    "torch.compile of DDP": lambda net: torch.compile(Wrapped(net)),
}


@pytest.mark.parametrize("way", WRAPPERS)
def test_checkpoints_of_wrapped_networks_load(way):
    net = different(small())
    state = WRAPPERS[way](net).state_dict()
    assert not set(state) & set(net.state_dict())
    fresh = small()
    fresh.load_state_dict(state)
    assert same(fresh.state_dict(), net.state_dict())


def test_a_checkpoint_of_a_network_with_a_compiled_cell_loads_both_ways():
    net, fresh = different(small()), small()
    plain = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    net.cell1 = torch.compile(net.cell1)
    assert any("cell1._orig_mod." in name for name in net.state_dict())
    fresh.load_state_dict(net.state_dict())
    assert same(fresh.state_dict(), plain)
    different(net).load_state_dict(plain)
    assert same(dict(zip(plain, net.state_dict().values(), strict=True)), plain)


class Honest(nn.Module):
    """A third-party body with a submodule that is called ``module``."""

    norm_channels = (4,)

    def __init__(self):
        super().__init__()
        self.module = nn.Conv2d(4, 4, 3, padding=1, bias=False)
        self.weight = nn.Parameter(torch.ones(()))

    def forward(self, x, norms):
        return x + self.weight * norms[0](self.module(x))


class Own(rc.Network):
    """A user's network around such bodies."""

    def __init__(self, body=Honest):
        super().__init__((1, 2))
        self.cell = rc.RecurrentCell(body(), self.dial)


@pytest.mark.parametrize("wrap", [lambda net: net, Wrapped, torch.compile], ids=["plain", "DDP", "torch.compile"])
def test_a_submodule_that_is_honestly_called_module_keeps_its_name(wrap):
    class Unweighted(Honest):
        def __init__(self):
            super().__init__()
            del self.weight

    net = different(Own(Unweighted))
    fresh = Own(Unweighted)
    fresh.load_state_dict(wrap(net).state_dict())
    assert "cell.body.module.weight" in fresh.state_dict()
    assert same(fresh.state_dict(), net.state_dict())


def test_names_that_only_such_a_part_tells_apart_are_taken_as_they_are():
    net, fresh = different(Own()), Own()  # cell.body.weight and cell.body.module.weight
    fresh.load_state_dict(net.state_dict())
    assert same(fresh.state_dict(), net.state_dict())
    with pytest.raises(ValueError, match=r"every tensor's name begins with 'module\.'"):
        fresh.load_state_dict(Wrapped(net).state_dict())


def test_the_names_of_a_larger_module_are_refused_in_one_line():
    state = {f"net.{name}": tensor for name, tensor in small().state_dict().items()}
    with pytest.raises(ValueError, match=r"^every tensor's name begins with 'net\.', .* take that off the names$"):
        small().load_state_dict(state)
    with pytest.raises(ValueError, match=r"missing: normalize\.mean"):
        small().load_state_dict({})


@pytest.mark.parametrize("wrap", [lambda net: net, Wrapped, torch.compile], ids=["plain", "DDP", "torch.compile"])
def test_modules_are_told_the_version_of_what_they_load(wrap):
    class Versioned(nn.Module):
        _version = 2
        norm_channels = ()
        seen = None

        def _load_from_state_dict(self, state, prefix, metadata, *args):
            self.seen = metadata.get("version")
            super()._load_from_state_dict(state, prefix, metadata, *args)

        def get_extra_state(self):
            return {"a": 1}

        def set_extra_state(self, state):
            self.extra = state

    net, fresh = Own(Versioned), Own(Versioned)
    fresh.load_state_dict(wrap(net).state_dict())
    assert (fresh.cell.body.seen, fresh.cell.body.extra) == (2, {"a": 1})


# --- networks that were changed


def test_class_names_and_image_size_are_saved_as_they_are_now(tmp_path):
    net = rc.r2(num_classes=2, width=1 / 16)
    net.class_names, net.image_size = ("cat", "dog"), 64
    net.save_pretrained(tmp_path)
    loaded = rc.load(tmp_path)
    assert (loaded.class_names, loaded.image_size) == (("cat", "dog"), 64)


def _another_head(net):
    net.head.linear = nn.Linear(net.head.linear.in_features, 3)


def _another_epsilon(net):
    net.cell1.bank.row2_step0[0].eps = 0.1


def _without_normalisation(net):
    net.normalize = nn.Identity()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (_another_head, r"head\.linear\.weight \[3, 16\] instead of \[10, 16\]"),
        (_another_epsilon, r"eps of cell1\.bank\.row2_step0\.0 is 0\.1"),
        (_without_normalisation, r"missing: normalize\.mean"),
    ],
)
def test_a_network_that_load_could_not_rebuild_is_not_saved(change, words, tmp_path):
    net = rc.r2(width=1 / 16)
    change(net)
    with pytest.raises(ValueError, match=f"no longer what r2 makes.*{words}.*save its state_dict"):
        net.save_pretrained(tmp_path / "model")
    assert not (tmp_path / "model").exists()


def test_two_tensors_for_one_name_are_refused():
    state = small().state_dict()
    state["module.stem.weight"] = state["stem.weight"]
    with pytest.raises(ValueError, match=r"stem\.weight and module\.stem\.weight are both stem\.weight without"):
        small().load_state_dict(state)
