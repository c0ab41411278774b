"""Saving and loading: round trips, and what is said of files that do not fit."""

import json
import os
import re
import stat

import huggingface_hub
import huggingface_hub.constants
import pytest
import safetensors.torch
import torch
from torch import nn

import recurconv as rc
from recurconv import checkpoint, loading
from recurconv.network import BUILDERS

ARGUMENTS = {
    "r2": {"width": 1 / 16, "num_classes": 3, "class_names": ("cat", "dog", "eel"), "mean": (0.1, 0.2, 0.3)},
    "s2": {"width": 1 / 16, "steps": 2},
    "r3": {"channels": 4, "steps": (1, 3), "unified": False},
    "s3": {"channels": 4},
    "r4": {"width": 1 / 16, "norm": "independent"},
    "s4": {"width": 1 / 16, "steps": 1},
    "deeply_supervised_s4": {"width": 1 / 16, "image_channels": 1},
}


def small(**arguments):
    return rc.r2(**{"width": 1 / 16, "steps": (1, 2), **arguments})


def different(net):
    """Every tensor another value, statistics too."""
    with torch.no_grad():
        for tensor in net.state_dict().values():
            if tensor.is_floating_point():
                tensor.copy_(torch.rand(tensor.shape) * 0.5 + 0.5)
    return net


@pytest.fixture
def folder(tmp_path):
    different(small()).save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def same(a, b):
    return list(a) == list(b) and all(a[name].dtype == b[name].dtype and torch.equal(a[name], b[name]) for name in a)


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
    checkpoint.write_atomically(path, lambda temporary: temporary.write_text("old"))

    def full(temporary):
        temporary.write_text("ne")
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space left"):
        checkpoint.write_atomically(path, full)
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
    with pytest.raises(ValueError, match=r"unexpected: module\.normalize\.mean"):
        fresh.load_state_dict(Wrapped(net).state_dict())


def test_two_tensors_for_one_name_are_refused():
    state = small().state_dict()
    state["module.stem.weight"] = state["stem.weight"]
    with pytest.raises(ValueError, match=r"stem\.weight and module\.stem\.weight are both stem\.weight without"):
        small().load_state_dict(state)


# --- broken files


def refused(folder, kind=ValueError):
    with pytest.raises(kind) as caught:
        rc.load(folder)
    message = str(caught.value)
    assert "\n" not in message
    assert str(folder) in message
    return message


@pytest.mark.parametrize("size", [0, 4, 100, -1])
def test_truncated_weights(folder, size):
    data = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(data[:size])
    assert "model.safetensors is truncated or not a safetensors file: " in refused(folder)


def test_weights_of_another_format(folder):
    torch.save({"weight": torch.zeros(2)}, folder / "model.safetensors")
    assert "truncated or not a safetensors file" in refused(folder)


def test_missing_files(folder):
    (folder / "model.safetensors").unlink()
    assert "model.safetensors is not there" in refused(folder, FileNotFoundError)
    (folder / "config.json").unlink()
    message = refused(folder, FileNotFoundError)
    assert message.endswith("holds no config.json; give a folder that save_pretrained or a run wrote")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b"", "config.json is not JSON: Expecting value"),
        (b'{"network": "r2", ', "config.json is not JSON"),
        (b"\xff\xfe\x00", "config.json is not JSON"),
        (b"[" * 100_000, "config.json is not JSON"),
        (b"[1, 2]", 'not a recurconv config: it needs "network", a name, and "arguments"'),
        (b'{"architectures": ["ResNet"]}', "not a recurconv config"),
        (b'{"network": ["r2"], "arguments": {}}', "not a recurconv config"),
        (b'{"network": "r2", "arguments": [2, 3]}', "not a recurconv config"),
    ],
)
def test_files_that_are_no_configs(folder, text, words):
    (folder / "config.json").write_bytes(text)
    assert words in refused(folder)


@pytest.mark.parametrize(
    ("network", "arguments", "words"),
    [
        ("r9", "{}", "network 'r9' is unknown; there are deeply_supervised_s4, r2, r3, r4, s2, s3, s4"),
        ("__init__", "{}", "network '__init__' is unknown"),
        ("r2", '{"depth": 3, "skip": 1}', "r2 does not take depth, skip; it takes num_classes, steps, norm, width"),
        ("r2", '{"options": {}}', "r2 does not take options; it takes num_classes"),
        ("r3", '{"class_names": null}', "r3 does not take class_names; it takes steps"),
        ("r2", '{"steps": [2, "3"]}', "r2 cannot be made with these arguments: steps=[2, '3'] is not a dial"),
        ("r2", '{"num_classes": "ten"}', "r2 cannot be made with these arguments: "),
        ("r2", '{"width": NaN}', "r2 cannot be made with these arguments: "),
        ("r2", '{"width": 1e30}', "r2 cannot be made with these arguments: "),
        ("r2", '{"width": 1e5}', "of another shape: stem.weight [4, 3, 3, 3] instead of [6400000, 3, 3, 3]"),
    ],
)
def test_configs_that_make_no_such_network(folder, network, arguments, words):
    (folder / "config.json").write_text(f'{{"network": "{network}", "arguments": {arguments}}}')
    assert words in refused(folder)


@pytest.mark.parametrize(
    "change", [{"network": "r7"}, {"arguments": {"gates": 2}}, {"arguments": {"norm": "quadruple"}}]
)
def test_a_config_of_another_version_that_this_one_cannot_make_says_which(folder, change):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **change, "recurconv": "9.1.0"}))
    assert refused(folder).endswith(f"(recurconv 9.1.0 wrote it, this is {rc.__version__})")
    (folder / "config.json").write_text(json.dumps({**config, "recurconv": "9.1.0"}))
    assert rc.load(folder).dial == (1, 2)


def test_weights_of_another_network(folder):
    safetensors.torch.save_file(small(steps=(1, 3)).state_dict(), folder / "model.safetensors")
    message = refused(folder)
    assert "dial of the file: (1, 3); of the network: (1, 2)" in message


# --- names


@pytest.mark.parametrize("name", loading.shipped())
def test_shipped_weights_load_and_tell_their_provenance(name):
    net = rc.load(name)
    assert not net.training
    x = torch.rand(1, net.image_channels, 32, 32)
    assert all(torch.isfinite(net(x, steps)).all() for steps in net.dial)
    provenance = json.loads((loading._shipped_folder() / name / "provenance.json").read_text())
    assert isinstance(provenance, dict)


@pytest.fixture
def weights(tmp_path, monkeypatch):
    """Shipped weights of the test's own: r2-tiny and r3-tiny."""
    small().save_pretrained(tmp_path / "weights" / "r2-tiny")
    rc.r3(channels=2).save_pretrained(tmp_path / "weights" / "r3-tiny")
    (tmp_path / "weights" / "README.md").write_text("not a network")
    monkeypatch.setattr(loading, "_shipped_folder", lambda: tmp_path / "weights")
    return tmp_path / "weights"


def test_a_shipped_name_wins_over_a_folder_of_that_name_and_a_path_does_not(weights, tmp_path, monkeypatch):
    assert loading.shipped() == ["r2-tiny", "r3-tiny"]
    monkeypatch.chdir(tmp_path)
    small(steps=7).save_pretrained("r2-tiny")
    assert rc.load("r2-tiny").dial == (1, 2)
    assert rc.load("./r2-tiny").dial == (7,)
    assert rc.load(tmp_path / "r2-tiny").dial == (7,)


def test_an_unknown_name_lists_the_shipped_ones(weights):
    with pytest.raises(FileNotFoundError) as caught:
        rc.load("r2-cifar1000")
    assert str(caught.value) == "r2-cifar1000 is neither a folder nor shipped weights (r2-tiny, r3-tiny)"


def test_a_file_is_not_a_folder(folder):
    with pytest.raises(ValueError, match=r"is a file; give the folder that holds config\.json and model\.safetensors"):
        rc.load(folder / "model.safetensors")


@pytest.fixture
def offline(tmp_path, monkeypatch):
    """The Hub without a network, with a cache of the test's own."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    return tmp_path / "hub"


def test_without_a_network_the_hub_s_cache_serves(offline):
    net = different(small())
    repository = offline / "models--someone--tiny"
    net.save_pretrained(repository / "snapshots" / "c0ffee")
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("c0ffee")
    assert same(rc.load("someone/tiny").state_dict(), net.state_dict())


def test_what_the_hub_does_not_give_is_one_clear_line(weights, offline):
    with pytest.raises(FileNotFoundError) as caught:
        rc.load("someone/else")
    message = str(caught.value)
    assert message.startswith(
        "someone/else is neither a folder nor shipped weights (r2-tiny, r3-tiny), and the Hugging Face Hub does not "
    )
    assert "\n" not in message
    with pytest.raises(
        FileNotFoundError, match=r"someone/\.\.else is neither .* the Hugging Face Hub does not give it"
    ):
        rc.load("someone/..else")


def test_from_the_hub_come_the_two_files_of_one_revision(folder, monkeypatch):
    asked = []

    def snapshot_download(repository, allow_patterns):
        asked.append((repository, sorted(allow_patterns)))
        return str(folder)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    assert rc.load("someone/net").dial == (1, 2)
    assert asked == [("someone/net", ["config.json", "model.safetensors"])]
