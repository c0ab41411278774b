"""Exported graphs: what they compute against PyTorch, each weight once, every setting as its static model."""

import hashlib

import numpy as np
import onnx
import pytest
import torch
from torch import nn

import recurconv as rc
from exporting import graphs, pytorch, relative, run, session
from recurconv.denoisers import r3_half
from recurconv.export import join_settings, static_model
from small import different

DATA = "model.onnx.data"


@pytest.fixture(scope="module")
def net():
    return rc.load("r2-cifar10")


@pytest.fixture(scope="module")
def models(net):
    return {steps: static_model(net, steps) for steps in net.dial}


@pytest.fixture(scope="module", params=[None, DATA], ids=["one file", "two files"])
def joined(request, models, tmp_path_factory):
    """(path, model, data) of the shipped classifier with its dial."""
    model, data = join_settings(models, data_file=request.param)
    path = tmp_path_factory.mktemp("joined") / "model.onnx"
    path.write_bytes(model.SerializeToString())
    path.with_name(DATA).write_bytes(data)
    return path, model, data


def noise(*shape, seed=0):
    return np.random.default_rng(seed).random(shape, np.float32)


def shapes_of(values):
    return {
        value.name: [dim.dim_param or dim.dim_value for dim in value.type.tensor_type.shape.dim] for value in values
    }


# --- the static model of a setting


def test_a_setting_is_a_plain_graph_of_standard_operators(net, models):
    for model in models.values():
        onnx.checker.check_model(model, full_check=True)
        assert shapes_of(model.graph.input) == {"image": ["N", 3, "H", "W"]}
        assert shapes_of(model.graph.output) == {"logits": ["N", 10]}
        assert {entry.domain for entry in model.opset_import} == {""}
        assert not model.functions


def test_its_weights_are_the_networks_under_their_names_and_nothing_is_folded(net, models):
    state = net.state_dict()
    for steps, model in models.items():
        names = {t.name: onnx.numpy_helper.to_array(t) for t in model.graph.initializer}
        for name, array in names.items():
            if name in state:
                assert np.array_equal(array, state[name].numpy())
            else:
                assert array.nbytes < 100, name  # a shape
        used = {name for name in state if f"row{steps}_" in name and "num_batches" not in name}
        assert used <= names.keys()
        assert not any(f"row{other}_" in name for other in net.dial if other != steps for name in names)
        kinds = [node.op_type for node in model.graph.node]
        assert kinds.count("Conv") == 1 + 4 * steps
        assert kinds.count("BatchNormalization") == 4 * steps


def test_exporting_leaves_the_network_as_it_is(models, net):
    assert all(parameter.requires_grad for parameter in net.parameters())
    assert not net.training


# --- the dial


@pytest.mark.parametrize("shape", [(1, 3, 32, 32), (5, 3, 33, 47), (2, 3, 19, 8)])
def test_every_setting_gives_what_pytorch_gives(joined, net, shape):
    opened = session(joined[0])
    for steps in net.dial:
        images = noise(*shape)
        assert relative(run(opened, images, steps), pytorch(net, images, steps)) < 1e-5


def test_every_setting_gives_what_its_static_model_gives(joined, models):
    opened, images = session(joined[0]), noise(3, 3, 31, 35)
    for steps, model in models.items():
        assert np.array_equal(run(opened, images, steps), run(session(model), images))


def test_the_settings_differ(joined, net):
    opened, images = session(joined[0]), noise(1, 3, 32, 32)
    assert len({run(opened, images, steps).tobytes() for steps in net.dial}) == len(net.dial)


def test_it_is_valid_onnx_with_three_names(joined):
    path, model, _ = joined
    onnx.checker.check_model(path, full_check=True)
    assert shapes_of(model.graph.input) == {"image": ["N", 3, "H", "W"], "steps": []}
    assert shapes_of(model.graph.output) == {"logits": ["N", 10]}


def test_each_weight_is_stored_once(joined, models):
    """By the bytes in the two files, not by names: every large weight of the network is found in one place."""
    path, _, data = joined
    stored = path.read_bytes() + data
    for model in models.values():
        for tensor in model.graph.initializer:
            if len(tensor.raw_data) >= 1024:
                assert stored.count(tensor.raw_data) == 1, tensor.name


def test_tensors_that_share_a_place_in_the_data_file_have_its_content(models):
    model, data = join_settings(models, data_file=DATA)
    branches = [graph for graph in graphs(model.graph) if graph.name.startswith("steps_")]
    assert {graph.name for graph in branches} == {f"steps_{steps}" for steps in models}
    for graph in branches:
        steps = int(graph.name.removeprefix("steps_"))
        own = {t.name: t for t in models[steps].graph.initializer}
        outside = [t for t in graph.initializer if t.data_location == onnx.TensorProto.EXTERNAL]
        assert outside
        for tensor in outside:
            place = {entry.key: entry.value for entry in tensor.external_data}
            start, length = int(place["offset"]), int(place["length"])
            assert place["location"] == DATA
            assert start % 64 == 0
            original = own[tensor.name.removeprefix(f"{steps}/")]
            assert data[start : start + length] == original.raw_data
            assert list(tensor.dims) == list(original.dims)


def test_the_dial_is_hardly_larger_than_the_largest_setting(joined, models):
    path, _, data = joined
    largest = max(model.ByteSize() for model in models.values())
    assert path.stat().st_size + len(data) <= 1.06 * largest


@pytest.mark.parametrize("steps", [-1, 0, 1, 5, 2**40])
def test_a_setting_off_the_dial_fails_and_says_which_there_are(joined, steps):
    with pytest.raises(Exception, match="steps must be one of 2, 3, 4"):
        run(session(joined[0]), noise(1, 3, 32, 32), steps)


def test_onnxruntime_makes_the_shared_kernels_constants_of_each_branch(models, tmp_path):
    """Which the speed rests on: shared constants of the outer graph are not arranged for fast convolutions."""
    import onnxruntime

    model, _ = join_settings(models)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    options.log_severity_level = 4
    onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    optimized = onnx.load(tmp_path / "optimized.onnx")
    branches = [graph for graph in graphs(optimized.graph) if any(n.op_type.endswith("Conv") for n in graph.node)]
    assert len(branches) == len(models)
    for graph in branches:
        own = {tensor.name for tensor in graph.initializer}
        kernels = {node.input[1] for node in graph.node if node.op_type.endswith("Conv")}
        assert kernels <= own


# --- joining models of any origin, as quantised ones


def plain(values, *, name="w", output="logits", domain_version=20):
    """image [N, 2] x values -> logits."""
    tensor = onnx.numpy_helper.from_array(np.asarray(values, np.float32), name)
    helper = onnx.helper
    image = helper.make_tensor_value_info("image", onnx.TensorProto.FLOAT, ["N", 512])
    result = helper.make_tensor_value_info(output, onnx.TensorProto.FLOAT, ["N", 512])
    graph = helper.make_graph([helper.make_node("Mul", ["image", name], [output])], "g", [image], [result], [tensor])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", domain_version)], ir_version=10)


@pytest.mark.parametrize("data_file", [None, DATA])
def test_what_is_the_same_is_told_by_content_not_by_name(data_file, tmp_path):
    same, other = np.arange(512), np.arange(512) + 1
    models = {1: plain(same, name="a"), 2: plain(other, name="a"), 3: plain(same, name="b")}
    model, data = join_settings(models, data_file=data_file)
    stored = model.SerializeToString() + data
    for values in (same, other):
        assert stored.count(values.astype(np.float32).tobytes()) == 1
    (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
    (tmp_path / DATA).write_bytes(data)
    opened = session(tmp_path / "m.onnx")
    for steps, values in ((1, same), (2, other), (3, same)):
        assert np.array_equal(run(opened, np.ones((1, 512)), steps)[0], values)
    joined_digest = hashlib.sha256(data).hexdigest()
    assert hashlib.sha256(join_settings(models, data_file=data_file).data).hexdigest() == joined_digest


def test_models_that_do_not_fit_together_are_refused():
    with pytest.raises(ValueError, match="there is no setting to join"):
        join_settings({})
    for odd in (plain(np.ones(512), output="clean"), plain(np.ones(512), domain_version=21)):
        with pytest.raises(ValueError, match="steps=3 has other inputs, outputs or opsets"):
            join_settings({2: plain(np.ones(512)), 3: odd})


# --- other networks


def check_setting(net, steps, *shapes, sigmas=(None,)):
    opened = session(static_model(net, steps))
    net = net.float().eval()
    for shape in shapes:
        for sigma in sigmas:
            images, told = noise(*shape), {} if sigma is None else {"sigma": sigma}
            assert relative(run(opened, images, sigma=sigma), pytorch(net, images, steps, **told)) < 1e-4


def test_a_denoiser_that_takes_the_noise_level():
    net = different(r3_half(channels=4, steps=(1, 2)))
    check_setting(net, 1, (1, 1, 16, 16), (3, 1, 9, 13), sigmas=(-1.0, 0.0, 25.0))


def test_groups_and_early_classifiers():
    net = rc.deeply_supervised_s4(width=1 / 16, num_classes=7)
    check_setting(net, 2, (1, 3, 32, 32), (3, 3, 17, 21))


def test_other_norm_layers_in_double_precision_and_training_mode():
    net = rc.r2(width=1 / 16, steps=(1, 2))
    for group in [m for m in net.modules() if isinstance(m, nn.ModuleList)]:
        for position, layer in enumerate(group):
            if isinstance(layer, nn.BatchNorm2d):
                group[position] = nn.GroupNorm(2, layer.num_features)
    net = net.double().train()
    opened = session(static_model(net, 1))
    assert net.training
    assert {parameter.dtype for parameter in net.parameters()} == {torch.float64}
    images = noise(2, 3, 18, 23)
    assert relative(run(opened, images), pytorch(net.float().eval(), images, 1)) < 1e-4


def test_bad_settings_and_opsets_are_refused_at_once(net):
    with pytest.raises(ValueError, match=r"steps=5 is not on this network's dial \(2, 3, 4\)"):
        static_model(net, 5)
    for opset in (17, 0, 99):
        with pytest.raises(ValueError, match=f"opset={opset} cannot be written; choose one from 18 to"):
            static_model(net, 2, opset=opset)
