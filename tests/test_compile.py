"""``torch.compile`` and ``torch.export``: how often they compile, and that they keep the results."""

import copy

import pytest
import torch
from functorch.compile import make_boxed_compiler
from torch._dynamo.backends.common import aot_autograd

import recurconv as rc

BUILDERS = {
    "r2": lambda **more: rc.r2(width=1 / 16, **more),
    "r3": lambda **more: rc.r3(channels=4, steps=(1, 2), **more),
    "r4": lambda **more: rc.r4(width=1 / 16, steps=(1, 2), **more),
    "s2": lambda: rc.s2(width=1 / 16, steps=3),
    "deeply_supervised_s4": lambda: rc.deeply_supervised_s4(width=1 / 16, steps=1),
}


class Backend:
    """Counts the graphs that it is given to compile, and runs each as it is."""

    def __init__(self):
        self.graphs = 0

    def __call__(self, graph, example_inputs):
        self.graphs += 1
        return graph.forward


@pytest.fixture
def backend():
    torch._dynamo.reset()
    yield Backend()
    torch._dynamo.reset()


def images(net, size=16, batch=2):
    return torch.rand(batch, net.image_channels, size, size, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(("kind", "training"), [("r2", True), ("r3", False), ("r4", False)])
def test_a_compiled_network_is_compiled_once_per_setting(kind, training, backend):
    net = BUILDERS[kind]().train(training)
    eager = copy.deepcopy(net)
    fast = torch.compile(net, backend=backend, fullgraph=True)
    x = images(net)
    a, b = net.dial[:2]
    for steps, graphs in ((a, 1), (b, 2), (a, 2), (b, 2)):
        torch.testing.assert_close(fast(x, steps=steps), eager(x, steps=steps))
        assert backend.graphs == graphs
    for name, tensor in eager.state_dict().items():
        torch.testing.assert_close(net.state_dict()[name], tensor, msg=name)


# Input shapes of the bodies: R_2 pools halfway, so that its two cells see two shapes each; those of R_3 are all alike.
SHAPES = {"r2": 4, "r3": 1, "s2": 4}


@pytest.mark.parametrize(
    ("kind", "norm"),
    [("r2", "shared"), ("r2", "double"), ("r3", "none"), ("r3", "independent")],
)
def test_a_compiled_body_is_compiled_once_per_shape_and_serves_every_step_and_row(kind, norm, backend):
    net = BUILDERS[kind](norm=norm, unified=False)
    eager = copy.deepcopy(net)
    net.compile_bodies(backend=backend, fullgraph=True)
    x = images(net)
    cells = len(net.cells())
    settings = [*net.dial, *net.dial[::-1], (net.dial[0],) * (cells - 1) + (net.dial[1],)]
    for training in (True, False):
        net.train(training), eager.train(training)
        for steps in settings:
            torch.testing.assert_close(net(x, steps), eager(x, steps))
        modes = 1 if training or norm == "none" else 2  # batch norm computes another thing in each
        assert backend.graphs == SHAPES[kind] * modes
    for name, tensor in eager.state_dict().items():
        torch.testing.assert_close(net.state_dict()[name], tensor, msg=name)


def test_bodies_of_an_untied_network_share_what_was_compiled(backend):
    net = BUILDERS["s2"]().eval()
    expected = net(images(net))
    net.compile_bodies(backend=backend, fullgraph=True)
    torch.testing.assert_close(net(images(net)), expected)
    assert backend.graphs == SHAPES["s2"]


def test_more_shapes_than_pytorch_s_own_limit_all_run_compiled(backend):
    net = BUILDERS["r3"]()
    net.compile_bodies(backend=backend, fullgraph=True)  # fullgraph: an error where PyTorch would give up
    batches = range(2, 7)
    for batch in batches:
        for training in (True, False):
            net.train(training)
            with torch.set_grad_enabled(training):
                for steps in net.dial:
                    net(images(net, batch=batch), steps)
    assert backend.graphs == 2 * len(batches) > torch._dynamo.config.recompile_limit


def test_dynamic_shapes_serve_many_sizes(backend):
    net = BUILDERS["r3"]().eval()
    expected = {size: net(images(net, size), 2) for size in (7, 9, 14)}
    net.compile_bodies(backend=backend, dynamic=True, fullgraph=True)
    for size, result in expected.items():
        torch.testing.assert_close(net(images(net, size), 2), result)
    assert backend.graphs == 1


@pytest.mark.parametrize("kind", ["r2", "r3"])
def test_compiled_bodies_have_the_gradients_of_eager_ones_and_names_stay(kind, backend):
    net = BUILDERS[kind]().double().train()
    eager = copy.deepcopy(net)
    boxed = make_boxed_compiler(backend)
    net.compile_bodies(backend=aot_autograd(fw_compiler=boxed))
    assert list(net.state_dict()) == list(eager.state_dict())
    x = images(net).double()
    for steps in net.dial:
        for one in (net, eager):
            one(x, steps).square().sum().backward()
    assert backend.graphs == 2 * SHAPES[kind]  # forward and backward
    for (name, ours), theirs in zip(net.named_parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-9, atol=1e-9, msg=name)


@pytest.mark.parametrize("kind", BUILDERS)
def test_each_setting_exports_as_a_static_graph(kind):
    net = BUILDERS[kind]().eval()
    x = images(net, size=8)
    for steps in net.dial:
        program = torch.export.export(net, (x,), {"steps": steps})
        torch.testing.assert_close(program.module()(x, steps=steps), net(x, steps))
        convolutions = [node for node in program.graph.nodes if "conv2d" in str(node.target)]
        assert len(convolutions) == convolutions_of(kind, steps)


def convolutions_of(kind, steps):
    if kind.startswith("deep"):  # stem, and for each group a block with a shortcut (but for the first) and a step
        return 1 + steps * 4 + steps - 1
    if kind in ("r2", "s2"):
        return 1 + 2 * 2 * steps
    if kind == "r3":
        return 2 + 3 * steps
    return 1 + 4 * 2 * (steps + 1) + 3  # R_4


def test_an_export_can_take_any_batch_and_size():
    net = BUILDERS["r2"]().eval()
    axes = {0: torch.export.Dim.DYNAMIC, 2: torch.export.Dim.DYNAMIC, 3: torch.export.Dim.DYNAMIC}
    program = torch.export.export(net, (images(net),), {"steps": 2}, dynamic_shapes={"images": axes, "steps": None})
    for batch, size in ((2, 16), (5, 21)):
        x = images(net, size, batch)
        torch.testing.assert_close(program.module()(x, steps=2), net(x, 2))
