"""What each setting of a network costs: parameters, MACs, depth, measured latency; and the setting for a budget."""

import contextlib
import copy
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, is_dataclass
from numbers import Integral
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import nn
from torch.autograd.graph import Node
from torch.utils.flop_counter import FlopCounterMode

from recurconv.cell import is_several
from recurconv.network import IMAGE_SIZE

if TYPE_CHECKING:
    from torch.utils.benchmark import Measurement

# The autograd nodes of convolutions and linear layers, e.g. "ConvolutionBackward0".
LAYER_NODE = re.compile(r"(Convolution|Linear|Addmm|Mm|Bmm|Baddbmm|Addmv|Mv)Backward\d")
# Passes over the settings in which ``latency`` measures them: for short calls, and at least.
ROUNDS, LEAST_ROUNDS = 10, 3


@dataclass(frozen=True)
class Cost:
    """The cost of one setting; ``steps`` is None for a network without a dial.

    ``parameters`` are those in use at this setting, each counted once however often it runs; ``parameters_total`` are
    all. ``macs`` are multiply-accumulates for one image (FLOPs = 2 x MACs) in convolutions and matrix products.
    ``depth`` is the largest number of convolutions and linear layers on a path from the image to the output, each
    counted every time it runs.
    """

    steps: int | None
    parameters: int
    parameters_total: int
    macs: int
    depth: int


@dataclass(frozen=True)
class Latency:
    """The measured time of one call at one setting; ``steps`` is None for a network without a dial.

    ``milliseconds`` is the median of ``runs`` timings and ``spread`` their interquartile range, in milliseconds, for
    ``batch`` images on ``threads`` threads. A timing is one call, or the mean over a few where a call is very short.
    """

    steps: int | None
    milliseconds: float
    spread: float
    runs: int
    threads: int
    batch: int


def cost(net: nn.Module, image_shape: Sequence[int] | None = None) -> list[Cost]:
    """Count what each setting costs, without computing: as quick for large images as for small ones.

    ``net`` and its buffers stay as they are; the count is of a copy without values, in eval mode.

    Args:
        net: called as ``net(images, steps=k)`` for each ``k`` in ``net.dial``; as ``net(images)`` if it has no dial.
        image_shape: of one image, [C, H, W]; by default of the network's own channels and size
            (``net.image_channels``; ``net.image_size``, or else 32 x 32).

    Returns:
        One row for each setting, in the order of the dial.

    Raises:
        ValueError: ``image_shape`` is not a shape, or is left out for a network without ``image_channels``; or what
            ``net`` returns cannot be followed back to its parameters.

    Source: the columns "Parameters" and "Depth" of tables 1 and 5 of the paper.
    """
    shape = _image_shape(net, image_shape)
    shadow = _shadow(net)
    total = sum(parameter.numel() for parameter in shadow.parameters())
    return [_cost(shadow, steps, shape, total) for steps in _dial(net)]


def latency(
    net: nn.Module,
    image_shape: Sequence[int] | None = None,
    *,
    batch: int = 1,
    threads: int | None = None,
    seconds: float = 1.0,
    device: torch.device | str | None = None,
) -> list[Latency]:
    """Measure how long a call takes at each setting, in eval and inference mode.

    The settings are measured in turn, several times over, so that other load on the machine hits them alike. Each
    module of ``net`` is in its former mode afterwards.

    Args:
        net: called as ``net(images, steps=k)`` for each ``k`` in ``net.dial``; as ``net(images)`` if it has no dial.
        image_shape: of one image, [C, H, W]; by default of the network's own channels and size
            (``net.image_channels``; ``net.image_size``, or else 32 x 32).
        batch: images in a call.
        threads: of PyTorch on the CPU; by default ``torch.get_num_threads()``.
        seconds: how long each setting is measured, in seconds, after a warm-up.
        device: where; by default where ``net`` is. On another device a copy is measured, with eager bodies.

    Returns:
        One row for each setting, in the order of the dial.

    Raises:
        ValueError: ``image_shape`` as in ``cost``; ``batch`` or ``threads`` below 1, ``seconds`` not above 0.
    """
    shape = _image_shape(net, image_shape)
    threads = torch.get_num_threads() if threads is None else threads
    if batch < 1 or threads < 1 or not 0 < seconds < math.inf:
        raise ValueError(
            f"batch={batch}, threads={threads}, seconds={seconds}: batch and threads are at least 1, seconds above 0"
        )
    home, dtype = _home(net)
    device = home if device is None else torch.device(device)
    net = net if device.type == home.type and device.index in (None, home.index) else copy.deepcopy(net).to(device)
    images = torch.rand(batch, *shape, generator=torch.Generator().manual_seed(0), device="cpu").to(device, dtype)
    with _eval_mode(net), torch.inference_mode():
        calls = [_call(net, images, steps) for steps in _dial(net)]
        times = _timings(calls, threads, seconds)
    return [_latency(steps, own, threads, batch) for steps, own in zip(_dial(net), times, strict=True)]


def steps_for(
    net: nn.Module,
    *,
    macs: float | None = None,
    milliseconds: float | None = None,
    image_shape: Sequence[int] | None = None,
    batch: int = 1,
    threads: int | None = None,
    seconds: float = 1.0,
    device: torch.device | str | None = None,
) -> int:
    """The largest setting of the dial that fits a budget.

    Args:
        net: a network with a dial.
        macs: the budget in multiply-accumulates for one image.
        milliseconds: or the budget in milliseconds for one call; the median that ``latency`` measures must fit.
        image_shape: of one image, [C, H, W]; by default of the network's own channels and size
            (``net.image_channels``; ``net.image_size``, or else 32 x 32).
        batch, threads, seconds, device: as in ``latency``, for ``milliseconds``.

    Raises:
        ValueError: not exactly one budget, a budget that is not above 0 or that no setting fits, or no dial.
    """
    name, budget = _one_budget(macs=macs, milliseconds=milliseconds)
    if _dial(net) == (None,):
        raise ValueError(f"{type(net).__name__} has no dial, so that there is no setting to choose; give it one")
    spent: dict[int, float]
    if name == "macs":
        spent = {cast(int, row.steps): row.macs for row in cost(net, image_shape)}
    else:
        rows = latency(net, image_shape, batch=batch, threads=threads, seconds=seconds, device=device)
        spent = {cast(int, row.steps): row.milliseconds for row in rows}
    fitting = [steps for steps, needed in spent.items() if needed <= budget]
    if not fitting:
        least = min(spent, key=spent.__getitem__)
        raise ValueError(
            f"{name}={budget} fits no setting; the smallest cost is {spent[least]} {name}, at steps={least}"
        )
    return max(fitting)


def _cost(shadow: nn.Module, steps: int | None, shape: tuple[int, ...], total: int) -> Cost:
    with torch.inference_mode(False), torch.enable_grad(), torch.device("meta"):
        image = torch.zeros(1, *shape, dtype=_home(shadow)[1], requires_grad=True)
        with FlopCounterMode(display=False) as flops:
            # A copy, since a network may change its input in place, which a leaf does not allow.
            output = _call(shadow, image.clone(), steps)()
    graph = _walk(output, image)
    used = [parameter for parameter in shadow.parameters() if id(parameter) in graph.leaves]
    macs = flops.get_total_flops() // 2
    if macs and total and not used:
        raise ValueError(
            f"what {type(shadow).__name__} returned cannot be followed back to its parameters, so that they cannot be "
            "counted; it must be a tensor or lists, mappings or dataclasses of them, computed with gradients "
            "(no detach, no_grad or reentrant checkpoint)"
        )
    return Cost(steps, sum(p.numel() for p in used), total, macs, graph.depth)


def _shadow(net: nn.Module) -> nn.Module:
    """An eager copy of ``net`` in eval mode whose parameters and buffers are on the meta device; ties are kept."""
    net = _unwrapped(net)
    with torch.inference_mode(False):
        memo = {id(tensor): _without_values(tensor) for tensor in (*net.parameters(), *net.buffers())}
        return copy.deepcopy(net, memo).eval()  # deepcopy leaves out what Module.compile added


def _unwrapped(net: nn.Module) -> nn.Module:
    """What torch.compile, DataParallel, DistributedDataParallel and AveragedModel wrap."""
    while (wrapped := getattr(net, "_orig_mod", None)) or [name for name, _ in net.named_children()] == ["module"]:
        net = cast(nn.Module, wrapped or net.module)
    return net


def _without_values(tensor: torch.Tensor) -> torch.Tensor:
    empty = torch.empty_like(tensor, device="meta", requires_grad=False)
    if not isinstance(tensor, nn.Parameter):
        return empty
    return nn.Parameter(empty, requires_grad=empty.is_floating_point())


@dataclass(frozen=True)
class _Graph:
    leaves: set[int]  # the ids of the tensors that the output was computed from
    depth: int


def _walk(output: object, image: torch.Tensor) -> _Graph:
    """The leaves of the autograd graph of ``output``, and the largest number of layers on a path from ``image``."""
    roots = [tensor.grad_fn for tensor in _tensors(output) if tensor.grad_fn is not None]
    leaves: set[int] = set()
    depths: dict[Node, int | None] = {}  # None: the node does not come from the image
    waiting = list(roots)
    while waiting:
        inputs = [node for node, _ in waiting[-1].next_functions if node is not None]
        new = [node for node in inputs if node not in depths]
        if new:
            waiting.extend(new)
            continue
        node = waiting.pop()
        leaf = getattr(node, "variable", None)
        leaves.add(id(leaf))
        depths[node] = 0 if leaf is image else _depth(node, [depths[i] for i in inputs])
    return _Graph(leaves, max((depths[root] or 0 for root in roots), default=0))


def _depth(node: Node, inputs: list[int | None]) -> int | None:
    """A node's depth from that of its inputs. A product of two features, as in attention, is not a layer."""
    features = [depth for depth in inputs if depth is not None]
    if not features:
        return None
    layer = LAYER_NODE.match(node.name()) and len(features) < len(inputs)
    return max(features) + bool(layer)


def _tensors(output: object) -> Iterator[torch.Tensor]:
    """The tensors in what a network returned: a tensor, or lists, tuples, mappings and dataclasses of them."""
    if isinstance(output, torch.Tensor):
        yield output
    elif is_dataclass(output) and not isinstance(output, type):
        yield from _tensors(vars(output))
    elif isinstance(output, Mapping | list | tuple):
        for part in output.values() if isinstance(output, Mapping) else output:
            yield from _tensors(part)


def _dial(net: nn.Module) -> tuple[int | None, ...]:
    dial = cast(Any, getattr(_unwrapped(net), "dial", None))
    return tuple(dial) if dial else (None,)


def _call(net: nn.Module, images: torch.Tensor, steps: int | None) -> Callable[[], object]:
    return (lambda: net(images)) if steps is None else (lambda: net(images, steps=steps))


def _image_shape(net: nn.Module, image_shape: Sequence[int] | None) -> tuple[int, ...]:
    net = _unwrapped(net)
    if image_shape is None:
        channels = getattr(net, "image_channels", None)
        if channels is None:
            raise ValueError(f"{type(net).__name__} has no image_channels; give image_shape, e.g. (3, 32, 32)")
        side = getattr(net, "image_size", None) or IMAGE_SIZE
        return (cast(int, channels), cast(int, side), cast(int, side))
    sizes = tuple(image_shape) if is_several(image_shape) else ()
    if not sizes or not all(isinstance(size, Integral) and size >= 1 for size in sizes):
        raise ValueError(f"image_shape={image_shape!r} is not the shape of one image; give e.g. (3, 32, 32)")
    return tuple(map(int, sizes))


def _home(net: nn.Module) -> tuple[torch.device, torch.dtype]:
    """Where the network's images must be, and of which type."""
    first = next((p for p in net.parameters() if p.is_floating_point()), torch.empty(0))
    return first.device, first.dtype


@contextlib.contextmanager
def _eval_mode(net: nn.Module) -> Iterator[None]:
    """Eval mode inside; each module's own mode again afterwards."""
    modes = {module: module.training for module in net.modules()}
    net.eval()
    try:
        yield
    finally:
        for module, training in modes.items():
            module.training = training


def _timings(calls: Sequence[Callable[[], object]], threads: int, seconds: float) -> list[list[float]]:
    """For each call its timings, in seconds. Round by round each call has its turn, until all had their ``seconds``."""
    # Imported here: it takes a third of a second, and warns on machines that have CUDA's compiler but no GPU.
    from torch.utils.benchmark import Timer

    timers = [Timer("call()", globals={"call": call}, num_threads=threads) for call in calls]
    for timer in timers:
        timer.timeit(1)  # what only the first call does, such as compiling
    rounds: list[list[Measurement]] = []
    while len(rounds) < LEAST_ROUNDS or sum(min(sum(m.raw_times) for m in own) for own in rounds) < seconds:
        rounds.append([timer.blocked_autorange(min_run_time=seconds / ROUNDS) for timer in timers])
    return [[time for measurement in own for time in measurement.times] for own in zip(*rounds, strict=True)]


def _latency(steps: int | None, times: list[float], threads: int, batch: int) -> Latency:
    milliseconds = torch.tensor(times, dtype=torch.float64) * 1e3
    low, median, high = milliseconds.quantile(torch.tensor([0.25, 0.5, 0.75], dtype=torch.float64)).tolist()
    return Latency(steps, median, high - low, len(times), threads, batch)


def _one_budget(**budgets: float | None) -> tuple[str, float]:
    given = [(name, budget) for name, budget in budgets.items() if budget is not None]
    if len(given) != 1:
        raise ValueError(f"give exactly one budget, {' or '.join(budgets)}; got {dict(given) or 'none'}")
    name, budget = given[0]
    if isinstance(budget, str) or not budget > 0:
        raise ValueError(f"{name}={budget} is no budget; give a number above 0")
    return name, budget
