"""CUDA graphs: the forward and backward pass of each plan recorded once, then replayed without launch overhead."""

import gc
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from recurconv.objectives import Plan

Backward = Callable[[Plan, torch.Tensor, torch.Tensor], torch.Tensor]
WARM_UPS = 3  # passes before recording: compilation, autotuning and lazy set-up must not be recorded


class _Recording:
    """One plan's graph, its loss, and the gradients that a replay fills."""

    def __init__(
        self,
        backward: Backward,
        plan: Plan,
        batch: tuple[torch.Tensor, torch.Tensor],
        network: nn.Module,
        pool: Any,
        stream: Any,
    ) -> None:
        buffers = [(buffer, buffer.clone()) for buffer in network.buffers()]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(WARM_UPS):
                network.zero_grad(set_to_none=True)
                backward(plan, *batch)
        torch.cuda.current_stream().wait_stream(stream)
        for buffer, value in buffers:  # the warm-ups must not count in running statistics
            buffer.copy_(value)
        network.zero_grad(set_to_none=True)  # so that gradients are made inside the recording, in its memory
        self.graph = torch.cuda.CUDAGraph()
        # "thread_local": the thread that pins a DataLoader's batches may go on with what a recording forbids.
        with torch.cuda.graph(self.graph, pool=pool, stream=stream, capture_error_mode="thread_local"):
            self.loss = backward(plan, *batch)
        self.gradients = [(p, p.grad) for p in network.parameters() if p.grad is not None]


class GraphedBackward:
    """Like ``backward``, through a CUDA graph for each plan. Batches must keep their shape and layout.

    Gradients must be None before a call. After it each parameter that the plan uses has its gradient, every other None.

    All graphs share one pool of memory. Each keeps its loss and gradients alive, so that no later recording takes
    their place; but what one replay leaves there, the next replay of another graph may use as scratch. So what a call
    returns and the gradients hold until the next call, which is as long as an update needs them.
    """

    def __init__(self, backward: Backward, network: nn.Module) -> None:
        self.backward, self.network = backward, network
        self.batch: tuple[torch.Tensor, torch.Tensor] | None = None
        gc.collect()  # an earlier run's graphs hold memory, and must not be freed while one is recorded
        self.pool = torch.cuda.graph_pool_handle()
        self.stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]  # of warm-ups and recordings
        self.recordings: dict[Plan, _Recording] = {}

    def __call__(self, plan: Plan, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """The loss of the iteration, a scalar, detached; overwritten by the next call."""
        if self.batch is None:
            self.batch = inputs.clone(), targets.clone()
        self.batch[0].copy_(inputs)
        self.batch[1].copy_(targets)
        if plan not in self.recordings:
            self.recordings[plan] = _Recording(self.backward, plan, self.batch, self.network, self.pool, self.stream)
        recording = self.recordings[plan]
        recording.graph.replay()
        for parameter, gradient in recording.gradients:
            parameter.grad = gradient
        return recording.loss
