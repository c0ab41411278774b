"""Training through CUDA graphs equals eager training: on a GPU for real, elsewhere with a stand-in for the recorder."""

import contextlib
import copy
from types import SimpleNamespace

import pytest
import torch

import tiny
from recurconv import graphs
from recurconv.graphs import WARM_UPS, GraphedBackward
from recurconv.objectives import Term

PLANS = [(Term(steps, 1.0),) for steps in (2, 4, 3, 2, 2, 3, 4, 2, 4, 3)]
SANDWICH = (Term(4, 0.5), Term(2, 0.5, distilled=True))


class StandIn:
    """Of ``torch.cuda``, with what a recording means: nothing is computed while it is made; a replay computes from what
    the recorded tensors hold then, and writes its results where the recording put them.
    """

    def __init__(self, backward, network):
        self.backward, self.network = backward, network
        self.last_call = None
        self.modes, self.made = [], []

    def current_stream(self):
        return SimpleNamespace(wait_stream=lambda other: None)

    def Stream(self):  # noqa: N802 (PyTorch's name)
        self.made.append(SimpleNamespace(wait_stream=lambda other: None))
        return self.made[-1]

    def stream(self, stream):
        return contextlib.nullcontext()

    def graph_pool_handle(self):
        return "pool"

    def watched(self, plan, inputs, targets):
        """``backward``, whose last call is what a replay repeats."""
        loss = self.backward(plan, inputs, targets)
        self.last_call = plan, inputs, targets, loss
        return loss

    def CUDAGraph(self):  # noqa: N802
        return SimpleNamespace(call=None, gradients=None, replay=None)

    @contextlib.contextmanager
    def graph(self, graph, pool, stream, capture_error_mode):
        assert pool == "pool"
        assert stream is self.made[0]
        self.modes.append(capture_error_mode)
        assert all(parameter.grad is None for parameter in self.network.parameters())
        before = [buffer.clone() for buffer in self.network.buffers()]
        yield
        plan, inputs, targets, loss = self.last_call
        static = {parameter: parameter.grad for parameter in self.network.parameters() if parameter.grad is not None}
        for gradient in (*static.values(), loss):
            gradient.fill_(torch.nan)  # nothing was computed yet
        for buffer, value in zip(self.network.buffers(), before, strict=True):
            buffer.copy_(value)

        def replay():
            held = {parameter: parameter.grad for parameter in self.network.parameters()}
            self.network.zero_grad(set_to_none=True)
            loss.copy_(self.backward(plan, inputs, targets))
            for parameter, gradient in static.items():
                gradient.copy_(parameter.grad)
            for parameter, gradient in held.items():
                parameter.grad = gradient

        graph.replay = replay


def graphed(trainer, monkeypatch):
    """``trainer`` with its backward pass through the stand-in."""
    stand_in = StandIn(trainer.backward, trainer.network)
    monkeypatch.setattr(graphs, "torch", SimpleNamespace(cuda=stand_in, Tensor=torch.Tensor))
    trainer.backward = GraphedBackward(stand_in.watched, trainer.network)
    return stand_in


def compare(eager, other, plans, tolerance=0.0):
    """Ten iterations of each; weights, running statistics, gradients and losses after every one."""
    for number, plan in enumerate(plans):
        inputs, targets = next(eager.task.training_batches(number // 3, number % 3, 0, 1))
        for trainer in (eager, other):
            trainer.optimizer.zero_grad(set_to_none=True)
            moved = inputs.contiguous(memory_format=torch.channels_last)
            loss = trainer.backward(plan, moved, targets).clone()
            torch.nn.utils.clip_grad_norm_(trainer.parameters, 1.0)
            trainer.optimizer.param_groups[0]["lr"] = 0.02 + 0.01 * number
            trainer.optimizer.step()
            trainer.loss = loss
        torch.testing.assert_close(other.loss, eager.loss, rtol=tolerance, atol=tolerance)
        for (name, a), b in zip(eager.network.named_parameters(), other.network.parameters(), strict=True):
            assert (a.grad is None) == (b.grad is None), f"iteration {number}: {name}"
        for name, tensor in eager.network.state_dict().items():
            found = other.network.state_dict()[name]
            assert found.allclose(tensor, rtol=tolerance, atol=tolerance), f"iteration {number}: {name}"


@pytest.mark.parametrize("plans", [PLANS, [SANDWICH, PLANS[0], SANDWICH, PLANS[1]]], ids=["unified", "sandwich"])
def test_what_surrounds_a_recording_keeps_training_as_it_is(plans, monkeypatch):
    """Warm-ups leave no trace, each plan is recorded once, gradients of unused groups are None, batches are copied."""
    config = tiny.recipe("precision=fp32")
    eager, other = tiny.trainer(config, choices=False), tiny.trainer(config, choices=False)
    calls = []
    backward = other.backward
    other.backward = lambda plan, x, y: calls.append((plan, x.data_ptr())) or backward(plan, x, y)
    stand_in = graphed(other, monkeypatch)
    compare(eager, other, plans)
    assert stand_in.modes == ["thread_local"] * len(set(plans))
    assert len({pointer for _, pointer in calls}) == 1  # always the same memory
    assert len(calls) == (WARM_UPS + 1) * len(set(plans)) + len(plans)


def test_the_stand_in_tells_a_warm_up_that_counts(monkeypatch):
    """The test above would see it: without putting buffers back, running statistics differ."""
    config = tiny.recipe("precision=fp32")
    eager, other = tiny.trainer(config, choices=False), tiny.trainer(config, choices=False)
    graphed(other, monkeypatch)
    monkeypatch.setattr(other.backward.network, "buffers", lambda: iter(()), raising=False)
    with pytest.raises(AssertionError, match=r"running_mean|num_batches_tracked"):
        compare(eager, other, PLANS[:2])


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("compiled", [False, True], ids=["eager bodies", "compiled bodies"])
def test_graphed_training_equals_eager_training_on_a_gpu(precision, compiled, monkeypatch):
    from recurconv.distributed import make_fabric

    monkeypatch.setattr(torch.backends.cudnn, "deterministic", True)  # both run the same kernels then
    monkeypatch.setattr(tiny, "make_fabric", lambda device, precision: make_fabric("cuda", precision))
    settings = ["width=0.25", f"precision={precision}", f"compile={compiled}"]
    eager = tiny.trainer(tiny.recipe(*settings, "cuda_graphs=false"), choices=False)
    other = tiny.trainer(tiny.recipe(*settings, "cuda_graphs=true"), choices=False)
    assert isinstance(other.backward, GraphedBackward)
    assert not isinstance(eager.backward, GraphedBackward)
    start = copy.deepcopy(eager.network.state_dict())
    compare(eager, other, [*PLANS, SANDWICH, PLANS[0], SANDWICH], tolerance=1e-5 if precision == "fp32" else 2e-2)
    assert len(other.backward.recordings) == 4
    assert not any(start[name].equal(tensor) for name, tensor in other.network.state_dict().items() if "conv" in name)
