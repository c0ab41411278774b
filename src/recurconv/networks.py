"""The paper's networks: R_2, S_2, R_3, S_3, R_4, S_4 and the deeply supervised S_4.

Each builder at the end (``r2``, ``s2``, ...) returns a ``Network``. R is compact and has a dial; S is its untied twin,
the same graph. Images are [B, C, H, W], float in [0, 1].
"""

import math
from collections.abc import Callable, Sequence
from functools import partial

import torch
import torch.nn.functional as F
from torch import nn
from typing_extensions import Unpack

from recurconv.cell import RecurrentCell, StandardCell, as_dial, default_norm
from recurconv.network import Cell, Network, Options, builder, check_count
from recurconv.norms import NormBank, norm_layers
from recurconv.usage import NormUsage


class ResidualBody(nn.Module):
    """Pre-activation residual block, two 3x3 convolutions: the body of the classifiers (He et al., 2016).

    With ``stride`` 2 or another number of output channels it is the body of the paper's T, a non-recurrent block: the
    shortcut is then a 1x1 convolution, without norm, of the activated input.
    """

    def __init__(self, channels: int, out_channels: int | None = None, *, stride: int = 1, bias: bool = False) -> None:
        super().__init__()
        out_channels = channels if out_channels is None else out_channels
        self.norm_channels = (channels, out_channels)
        self.conv1 = nn.Conv2d(channels, out_channels, 3, stride, padding=1, bias=bias)
        self.conv2 = nn.Conv2d(out_channels, out_channels, 3, padding=1, bias=bias)
        same = stride == 1 and out_channels == channels
        self.shortcut = None if same else nn.Conv2d(channels, out_channels, 1, bias=False)
        self.stride = stride

    def forward(self, x: torch.Tensor, norms: Sequence[nn.Module]) -> torch.Tensor:
        """[B, C, H, W] -> the same shape, or that of the out channels and stride; ``norms``: two layers."""
        h = F.relu(norms[0](x))
        # Not by the convolution's own stride: oneDNN spoils memory in its gradient below 8 channels in channels_last.
        x = x if self.shortcut is None else self.shortcut(h[..., :: self.stride, :: self.stride])
        h = self.conv1(h)
        return x + self.conv2(F.relu(norms[1](h)))  # type: ignore[no-any-return]


class ConvolutionBody(nn.Module):
    """Convolution, norm, ReLU: the body of the denoisers (section 5 of the paper)."""

    def __init__(self, channels: int, *, bias: bool = False) -> None:
        super().__init__()
        check_count("channels", channels, "a whole number of at least 1")
        self.norm_channels = (channels,)
        self.conv = nn.Conv2d(channels, channels, 3, padding=1, bias=bias)

    def forward(self, x: torch.Tensor, norms: Sequence[nn.Module]) -> torch.Tensor:
        """[B, C, H, W] -> the same shape; ``norms``: one layer."""
        return F.relu(norms[0](self.conv(x)))


class Transition(nn.Module):
    """A non-recurrent block (the paper's T): one norm group for each step count of the cell before it."""

    def __init__(self, body: ResidualBody, norm: NormUsage, rows: tuple[int, ...]) -> None:
        super().__init__()
        self.body = body
        self.bank = NormBank(norm_layers(body.norm_channels, nn.BatchNorm2d, norm), norm, dict.fromkeys(rows, 1))

    def forward(self, x: torch.Tensor, row: int) -> torch.Tensor:
        """Apply the block; ``row`` is the step count of the cell before."""
        return self.body(x, self.bank[row, 0])  # type: ignore[no-any-return]


class InvPool(nn.Module):
    """Invertible downsampling: 2x2 pixels become 4 channels. An odd last row or column is left out, as pooling does."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[B, C, H, W] -> [B, 4 C, H // 2, W // 2], in the memory format of ``x``."""
        height, width = x.shape[-2:]
        x = x[..., : height // 2 * 2, : width // 2 * 2]
        return _unshuffle_channels_last(x) if x.is_cuda and _is_channels_last(x) else F.pixel_unshuffle(x, 2)


def _is_channels_last(x: torch.Tensor) -> bool:
    """Whether the channels of a pixel lie side by side, in a cropped tensor, too."""
    return x.stride(1) == 1


def _unshuffle_channels_last(x: torch.Tensor) -> torch.Tensor:
    """``F.pixel_unshuffle(x, 2)`` that stays in channels_last, and so does its gradient.

    PyTorch's own returns contiguous tensors on CUDA, which every convolution behind it would have to convert.
    """
    batch, channels, height, width = x.shape
    pairs = x.permute(0, 2, 3, 1).reshape(batch, height // 2, 2, width // 2, 2, channels)
    pixels = pairs.permute(0, 1, 3, 5, 2, 4).reshape(batch, height // 2, width // 2, 4 * channels)
    return pixels.permute(0, 3, 1, 2)


class Head(nn.Module):
    """ReLU, global average, linear classifier with bias; no norm.

    Raises:
        ValueError: no class, or class names that are not one for each class.
    """

    def __init__(self, channels: int, num_classes: int, class_names: Sequence[str] | None = None) -> None:
        super().__init__()
        check_count("num_classes", num_classes, "at least 1 class")
        if class_names is not None and len(class_names) != num_classes:
            raise ValueError(f"num_classes={num_classes} and {len(class_names)} class names; give each a name, or none")
        self.linear = nn.Linear(channels, num_classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[B, C, H, W] -> logits [B, num_classes]."""
        return self.linear(F.relu(x).mean((-2, -1)))  # type: ignore[no-any-return]


class TwoCellClassifier(Network):
    """R_2 and S_2: stem -> C_1(64) -> InvPool -> C_2(256) -> head, with 2x2 average pooling halfway in each cell."""

    smallest_side = 8

    def __init__(self, cells: Sequence[Cell], channels: int, num_classes: int, **options: Unpack[Options]) -> None:
        super().__init__(cells[0].dial, **options)
        self.stem = nn.Conv2d(self.image_channels, channels, 3, padding=1, bias=False)
        self.cell1, self.cell2 = cells
        self.downsample = InvPool()
        self.head = Head(4 * channels, num_classes, self.class_names)

    def cells(self) -> list[Cell]:
        """The cells in the order of the data."""
        return [self.cell1, self.cell2]

    def unroll(self, x: torch.Tensor, counts: Sequence[int]) -> torch.Tensor:
        """Normalised images -> logits [B, num_classes]."""
        x = self.cell1(self.stem(x), counts[0])
        x = self.cell2(self.downsample(x), counts[1], row=counts[0])
        return self.head(x)  # type: ignore[no-any-return]


class FourCellClassifier(Network):
    """R_4 and S_4, after ResNet-34: stem -> T_1 -> C_1(64) -> T_2 -> C_2(128) -> T_3 -> C_3(256) -> T_4 -> C_4(512)."""

    def __init__(
        self, transitions: Sequence[Transition], cells: Sequence[Cell], num_classes: int, **options: Unpack[Options]
    ) -> None:
        super().__init__(cells[0].dial, **options)
        first, last = transitions[0].body.norm_channels[0], transitions[-1].body.norm_channels[1]
        self.stem = nn.Conv2d(self.image_channels, first, 3, padding=1, bias=False)
        self.transition1, self.transition2, self.transition3, self.transition4 = transitions
        self.cell1, self.cell2, self.cell3, self.cell4 = cells
        self.head = Head(last, num_classes, self.class_names)

    def transitions(self) -> list[Transition]:
        """T_1 ... T_4."""
        return [self.transition1, self.transition2, self.transition3, self.transition4]

    def cells(self) -> list[Cell]:
        """The cells in the order of the data."""
        return [self.cell1, self.cell2, self.cell3, self.cell4]

    def features(self, x: torch.Tensor, counts: Sequence[int]) -> torch.Tensor:
        """Normalised images -> what leaves the last of the first ``len(counts)`` groups (T_i, C_i)."""
        x = self.transition1(self.stem(x), row=1)
        x = self.cell1(x, counts[0])
        later = zip(self.transitions()[1:], self.cells()[1:], counts[1:], counts, strict=False)
        for transition, cell, count, row in later:
            x = cell(transition(x, row), count, row)
        return x

    def unroll(self, x: torch.Tensor, counts: Sequence[int]) -> torch.Tensor:
        """Normalised images -> logits [B, num_classes]."""
        return self.head(self.features(x, counts))  # type: ignore[no-any-return]


class DeeplySupervisedClassifier(FourCellClassifier):
    """S_4 with classifiers after groups 2 and 3 and the last one (Lee et al., 2015).

    Its dial counts groups, (2, 3, 4): ``steps=2`` runs the first two and their classifier. The paper compares it with
    the dial of R_4 (section 5.3).
    """

    def __init__(
        self, transitions: Sequence[Transition], cells: Sequence[Cell], num_classes: int, **options: Unpack[Options]
    ) -> None:
        super().__init__(transitions, cells, num_classes, **options)
        self.dial = (2, 3, 4)
        self.head2, self.head3 = (Head(t.body.norm_channels[1], num_classes) for t in transitions[1:3])

    def counts(self, steps: int | Sequence[int] | None) -> tuple[int, ...]:
        """The step counts of the groups that run."""
        if isinstance(steps, Sequence):
            raise ValueError(f"steps={steps}: this network takes one number, of groups, on {self.dial}")
        return tuple(cell.dial[-1] for cell in self.cells()[: self.setting(steps)])

    def unroll(self, x: torch.Tensor, counts: Sequence[int]) -> torch.Tensor:
        """Normalised images -> logits [B, num_classes] of the classifier after the groups that run."""
        head = {2: self.head2, 3: self.head3, 4: self.head}[len(counts)]
        return head(self.features(x, counts))  # type: ignore[no-any-return]


class Denoiser(Network):
    """R_3 and S_3: 3x3 head with ReLU -> three cells -> 3x3 tail that predicts what to add to the noisy image.

    Attributes:
        alignment: what the size of a tile and its place in a larger picture must divide by, in pixels.
        takes_sigma: whether a call takes the noise level, ``net(images, steps, sigma=25)``.
    """

    alignment = 1
    takes_sigma = False

    def __init__(self, cells: Sequence[Cell], channels: int, image_channels: int) -> None:
        super().__init__(cells[0].dial, image_channels=image_channels, mean=0.0, std=1.0)
        self.head = nn.Conv2d(image_channels, channels, 3, padding=1)
        self.cell1, self.cell2, self.cell3 = cells
        self.tail = nn.Conv2d(channels, image_channels, 3, padding=1)
        with torch.no_grad():
            self.tail.weight.mul_(0.1)  # training starts near the identity

    def cells(self) -> list[Cell]:
        """The cells in the order of the data."""
        return [self.cell1, self.cell2, self.cell3]

    def unroll(self, x: torch.Tensor, counts: Sequence[int]) -> torch.Tensor:
        """Noisy images [B, C, H, W] -> the estimate of the clean ones, same shape, not clipped."""
        h = self.cell1(F.relu(self.head(x)), counts[0])
        h = self.cell2(h, counts[1], row=counts[0])
        h = self.cell3(h, counts[2], row=counts[1])
        return x + self.tail(h)  # type: ignore[no-any-return]

    def reach(self, steps: int | None = None) -> int:
        """How far an output pixel sees: pixels on each side of it that it depends on, at one setting.

        Raises:
            ValueError: ``steps`` is off the dial.
        """
        return 2 + sum(self.counts(steps))  # a 3x3 convolution in head, tail and every step


def recurrent_cells(
    bodies: Sequence[nn.Module], dial: tuple[int, ...], norm: NormUsage, unified: bool, pooled: bool = False
) -> list[Cell]:
    """A cell for each body, each behind the one before."""
    return [
        RecurrentCell(body, dial, norm, dial if index else None, halfway=_pooling(pooled), unified=unified)
        for index, body in enumerate(bodies)
    ]


def _standard(bodies: Sequence[Callable[[], nn.Module]], steps: int, pooled: bool = False) -> list[Cell]:
    """An untied cell for each maker of bodies."""
    return [StandardCell(body, steps, halfway=_pooling(pooled)) for body in bodies]


def _pooling(pooled: bool) -> nn.Module | None:
    return nn.AvgPool2d(2) if pooled else None


def _scaled(channels: int, width: float) -> int:
    if isinstance(width, str) or not 0 < width < math.inf:
        raise ValueError(f"width={width!r}; give a finite factor above 0 on the channels")
    scaled = round(channels * width)
    if scaled < 1:
        raise ValueError(f"width={width} leaves no channels; give a factor of at least {1 / channels:.3g}")
    return scaled


def _transitions(channels: int, norm: NormUsage, rows: tuple[int, ...]) -> list[Transition]:
    """T_1 ... T_4. T_1 stands before every cell, so that it has one group whatever the dial."""
    bias = norm == "none"
    first: NormUsage = "independent" if norm == "double" else norm
    return [
        Transition(ResidualBody(channels, bias=bias), first, (1,)),
        *(
            Transition(ResidualBody(channels * 2**i, channels * 2 ** (i + 1), stride=2, bias=bias), norm, rows)
            for i in range(3)
        ),
    ]


@builder
def r2(
    num_classes: int = 10,
    steps: int | Sequence[int] = (2, 3, 4),
    norm: NormUsage | None = None,
    width: float = 1.0,
    *,
    unified: bool = True,
    **options: Unpack[Options],
) -> TwoCellClassifier:
    """R_2: two recurrent cells of 64 and 256 channels, 1.26 M parameters (tables 1, 2 and 4 of the paper).

    Args:
        num_classes: number of logits.
        steps: one step count, or the dial.
        norm: "none", "shared", "independent" or "double"; by default "double" for a dial, else "independent".
        width: factor on the channels.
        unified: False allocates norm groups for a step count per cell, ``net(images, steps=(3, 2))``.
        **options: see ``Network``.
    """
    dial, channels = as_dial(steps), _scaled(64, width)
    norm = default_norm(norm, dial)
    bodies = [ResidualBody(c, bias=norm == "none") for c in (channels, 4 * channels)]
    cells = recurrent_cells(bodies, dial, norm, unified, pooled=True)
    return TwoCellClassifier(cells, channels, num_classes, **options)


@builder
def s2(num_classes: int = 10, steps: int = 4, width: float = 1.0, **options: Unpack[Options]) -> TwoCellClassifier:
    """S_2: the untied twin of R_2 (table 1 of the paper). Arguments as in ``r2``."""
    channels = _scaled(64, width)
    bodies = [partial(ResidualBody, c) for c in (channels, 4 * channels)]
    return TwoCellClassifier(_standard(bodies, steps, pooled=True), channels, num_classes, **options)


@builder
def r3(
    steps: int | Sequence[int] = (1, 2, 3, 4),
    norm: NormUsage | None = None,
    channels: int = 64,
    image_channels: int = 1,
    *,
    unified: bool = True,
) -> Denoiser:
    """R_3: the denoiser, three recurrent cells of one convolution each (table 3 of the paper).

    Args:
        steps: one step count, or the dial.
        norm: "none", "shared", "independent" or "double"; by default "double" for a dial, else "independent".
        channels: of every cell.
        image_channels: 1 for gray, 3 for colour.
        unified: False allocates norm groups for a step count per cell.
    """
    dial = as_dial(steps)
    norm = default_norm(norm, dial)
    bodies = [ConvolutionBody(channels, bias=norm == "none") for _ in range(3)]
    return Denoiser(recurrent_cells(bodies, dial, norm, unified), channels, image_channels)


@builder
def s3(steps: int = 4, channels: int = 64, image_channels: int = 1) -> Denoiser:
    """S_3: the untied twin of R_3. Arguments as in ``r3``."""
    return Denoiser(_standard([partial(ConvolutionBody, channels)] * 3, steps), channels, image_channels)


@builder
def r4(
    num_classes: int = 100,
    steps: int | Sequence[int] = (1, 2, 3),
    norm: NormUsage | None = None,
    width: float = 1.0,
    *,
    unified: bool = True,
    **options: Unpack[Options],
) -> FourCellClassifier:
    """R_4: four recurrent cells of 64 to 512 channels, each behind a non-recurrent block (table 5 of the paper).

    Arguments as in ``r2``.
    """
    dial, channels = as_dial(steps), _scaled(64, width)
    norm = default_norm(norm, dial)
    bodies = [ResidualBody(channels * 2**i, bias=norm == "none") for i in range(4)]
    cells = recurrent_cells(bodies, dial, norm, unified)
    return FourCellClassifier(_transitions(channels, norm, dial), cells, num_classes, **options)


def _standard4(width: float, steps: int) -> tuple[list[Transition], list[Cell]]:
    channels = _scaled(64, width)
    bodies = [partial(ResidualBody, channels * 2**i) for i in range(4)]
    return _transitions(channels, "independent", as_dial(steps)), _standard(bodies, steps)


@builder
def s4(num_classes: int = 100, steps: int = 3, width: float = 1.0, **options: Unpack[Options]) -> FourCellClassifier:
    """S_4: the untied twin of R_4 (table 5 of the paper). Arguments as in ``r2``."""
    return FourCellClassifier(*_standard4(width, steps), num_classes, **options)


@builder
def deeply_supervised_s4(
    num_classes: int = 100, steps: int = 3, width: float = 1.0, **options: Unpack[Options]
) -> DeeplySupervisedClassifier:
    """S_4 with classifiers after groups 2 and 3 and the last one; its dial, (2, 3, 4), counts groups.

    Arguments as in ``r2``; ``steps`` is the fixed step count of each cell (section 5.3 of the paper).
    """
    return DeeplySupervisedClassifier(*_standard4(width, steps), num_classes, **options)
