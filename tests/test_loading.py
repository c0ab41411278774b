"""``load``: which names lead where, and what is said of files that are broken."""

import json

import huggingface_hub
import huggingface_hub.constants
import pytest
import safetensors.torch
import torch

import recurconv as rc
from recurconv import loading
from small import different, same, small


@pytest.fixture
def folder(tmp_path):
    different(small()).save_pretrained(tmp_path / "model")
    return tmp_path / "model"


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
        ("r9", "{}", "network 'r9' is unknown; there are deeply_supervised_s4, r2, r3, r3_half, r4, s2, s3, s4"),
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


def test_from_the_hub_come_the_files_of_one_revision(folder, monkeypatch):
    asked = []

    def snapshot_download(repository, allow_patterns):
        asked.append((repository, sorted(allow_patterns)))
        return str(folder)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    assert rc.load("someone/net").dial == (1, 2)
    assert asked == [("someone/net", ["config.json", "model.safetensors", "recipe.json"])]
