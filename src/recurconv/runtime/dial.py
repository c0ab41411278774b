"""``Dial``: an exported network on onnxruntime, whose cost is chosen at each call."""

import os
import threading
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from operator import index
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from recurconv.runtime import calibration as calibrations
from recurconv.runtime import exported
from recurconv.runtime.calibration import Calibration, Machine, Shape, Store
from recurconv.runtime.confidence import Thresholds, cascade, stages
from recurconv.runtime.pace import Pace

CPU = "CPUExecutionProvider"
LOWEST, HIGHEST = -4.0, 5.0  # noise leaves [0, 1], bytes that were not divided by 255 leave this
LARGEST_SIGMA = 255.0
UNKNOWN_SIGMA = -1.0

Images = NDArray[np.float32]
Provider = str | tuple[str, dict[str, Any]]


@dataclass(frozen=True, eq=False)
class Result:
    """What a call gave.

    Attributes:
        output: logits [N, classes], or the clean images [N, C, H, W], not clipped; float32.
        steps: the setting that ran; under ``confidence`` the largest one that ran.
        milliseconds: what the network took, measured.
        steps_per_image: the setting that each image's output is from, int64 [N].
    """

    output: NDArray[np.float32]
    steps: int
    milliseconds: float
    steps_per_image: NDArray[np.int64]


class Dial:
    """An exported network, run at the setting that a call asks for.

        dial = Dial("model.onnx")
        logits = dial.run(images, milliseconds=8).output     # images: float32 [N, C, H, W] in [0, 1]

    One object may be used by several threads at once. PyTorch is not needed.

    Args:
        path: a file that ``recurconv export`` wrote, with its data file beside it; one made with ``--steps`` has a dial
            of that one setting.
        threads: of one call; by default onnxruntime's choice.
        providers: onnxruntime's execution providers, by preference, each a name or a pair of it and its options; or the
            name of one; by default the CPU's.
        cache: the file that keeps the calibration for budgets in milliseconds; by default it lies beside the model, or
            in the user's cache where that folder cannot be written.

    Attributes:
        dial: the settings, ascending.
        macs: multiply-accumulates at each setting: of one image of 32 x 32 pixels (classifiers), or of one pixel
            (denoisers); ``macs_of`` has those of other sizes.
        kind: "classifier" or "denoiser".
        class_names: what the logits stand for, or None.
        image_size: height and width in pixels of the images that a classifier was trained on, or None.
        sha256: the sum of the model file, which tells one export from another.

    Raises:
        ImportError: onnxruntime is missing.
        FileNotFoundError: no such file, or its data file is missing.
        ValueError: another program's model, files that do not belong together, an unknown provider.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        threads: int | None = None,
        providers: str | Sequence[Provider] | None = None,
        cache: str | os.PathLike[str] | None = None,
    ) -> None:
        if threads is not None and not (_is_whole(threads) and threads >= 1):
            raise ValueError(f"threads={threads!r}; give at least 1, or None for onnxruntime's choice")
        self._file = exported.read(path)
        self.dial, self.macs, self.kind = self._file.dial, self._file.macs, self._file.kind
        self.class_names, self.image_size = self._file.class_names, self._file.image_size
        self.sha256 = self._file.sha256
        wanted = (CPU,) if providers is None else (providers,) if isinstance(providers, str) else tuple(providers)
        self._session, version = _open(self._file.path, None if threads is None else int(threads), wanted)
        inputs = {node.name: node.shape for node in self._session.get_inputs()}
        self._image_shape, self._takes = inputs.get("image", []), set(inputs)
        machine = Machine(
            calibrations.processor(),
            threads or calibrations.usable_cores(),
            (*self._session.get_providers(), *(str(one) for one in wanted if not isinstance(one, str))),
            version,
        )
        if cache is None:
            files = calibrations.default_files(self._file.path, self._file.sha256)
        else:
            files = (Path(cache).expanduser(),)
        self._store = Store(self._file.sha256, machine, self.dial, files)
        self._paces: dict[str, Pace] = {}
        self._lock = threading.Lock()  # of the paces
        self._calibrating = threading.Lock()

    def run(
        self,
        images: ArrayLike,
        *,
        steps: int | None = None,
        milliseconds: float | None = None,
        macs: float | None = None,
        confidence: float | Thresholds | None = None,
        sigma: float | None = None,
        strict: bool = False,
    ) -> Result:
        """Run the network at one setting: the largest, or the one that the budget given asks for.

        Args:
            images: float32 [N, C, H, W] in [0, 1] (noise may leave it); other floats are converted.
            steps: a setting on the dial.
            milliseconds: or the time that the call may take. The largest setting fits whose expected time is within it:
                that comes from a calibration (``calibrate``) at the first such call, and from what calls have taken
                since (``Pace``), so that load on the machine leads to smaller settings while it lasts.
            macs: or the multiply-accumulates for one image, of the size that is given.
            confidence: or, for classifiers, how sure is sure: all images run at the smallest setting, and those whose
                largest probability is below this number again at the largest one. Or a threshold for each setting
                that is to run, as ``recurconv tune-confidence`` finds them, e.g. {2: 0.65, 3: 0.8}.
            sigma: for a denoiser that takes it, the noise in 1/255; None = unknown.
            strict: raise an error where no setting fits the budget, instead of a warning and the smallest setting. Such
                calls teach nothing, so that now and then one first tries, on an empty image, what the smallest takes.

        Raises:
            ValueError: images that the network cannot take, a setting off the dial, more than one budget, one that does
                not suit the network, or with ``strict`` one that nothing fits.
        """
        budgets = {"steps": steps, "milliseconds": milliseconds, "macs": macs, "confidence": confidence}
        given = [name for name, value in budgets.items() if value is not None]
        if len(given) > 1:
            raise ValueError(f"{' and '.join(given)} are given; a call takes one of {', '.join(budgets)}")
        array, noise = self._checked_images(images), self._checked_sigma(sigma)
        if confidence is not None:
            return self._run_confident(array, noise, confidence)
        if milliseconds is not None:
            setting = self._within_milliseconds(_budget("milliseconds", milliseconds), array.shape, strict)
        elif macs is not None:
            setting = self._within_macs(_budget("macs", macs), array.shape, strict)
        else:
            setting = self.dial[-1] if steps is None else self._checked_steps(steps)
        output, taken = self._call(array, noise, setting)
        return Result(output, setting, taken, np.full(len(array), setting, np.int64))

    def macs_of(self, steps: int, height: int, width: int) -> float:
        """Multiply-accumulates at a setting for one image of this size: what ``run(images, macs=...)`` compares with.

        In proportion to the pixels, which is exact where both sides can be divided by 8. Others are rounded inside the
        network: ``recurconv.cost`` counts those exactly, for sides of 16 to 32 pixels up to 1.37 times as much (R_4).

        Raises:
            ValueError: a setting off the dial, or a side below 1.
        """
        if min(height, width) < 1:
            raise ValueError(f"height={height}, width={width}; each is at least 1")
        return self._file.macs_of(self._checked_steps(steps), height, width)

    def calibrate(self, batch: int, height: int, width: int) -> dict[int, float]:
        """Milliseconds of a call at each setting, measured now and kept, also for other processes.

        The first call with a budget in milliseconds does so by itself, for its own shape. A calibration serves all
        shapes whose batch and whose pixels are the same after rounding up to a power of two, scaled by their pixels. It
        takes a second or two; for large pictures two calls at each setting, or one if they are slow.
        """
        shape = (batch, self._file.image_channels, height, width)
        if not all(map(_is_whole, shape)) or min(shape) < 1:
            raise ValueError(f"batch={batch!r}, height={height!r}, width={width!r}; each is a whole number from 1 on")
        self._checked_images(np.broadcast_to(np.float32(0.5), shape))
        with self._calibrating:
            return dict(self._measured(shape).calibration.milliseconds)

    # --- budgets

    def _within_milliseconds(self, budget: float, shape: Shape, strict: bool) -> int:
        pace = self._pace(shape)
        with self._lock:
            trial = strict and pace.is_stale() and pace.choose(budget, shape) is None
        if trial:
            self._call(np.full(shape, 0.5, np.float32), UNKNOWN_SIGMA, self.dial[0])
        with self._lock:
            setting = pace.choose(budget, shape)
            least = pace.expected(self.dial[0], shape)
        return setting or self._smallest(f"milliseconds={budget:g}", f"about {least:.3g} ms", strict)

    def _within_macs(self, budget: float, shape: Shape, strict: bool) -> int:
        needed = {steps: self.macs_of(steps, shape[2], shape[3]) for steps in self.dial}
        fitting = [steps for steps in self.dial if needed[steps] <= budget]
        least = f"{needed[self.dial[0]]:.4g} MACs"
        return max(fitting) if fitting else self._smallest(f"macs={budget:g}", least, strict)

    def _smallest(self, budget: str, needed: str, strict: bool) -> int:
        fact = f"{budget} fits no setting; the smallest, steps={self.dial[0]}, takes {needed}"
        if strict:
            raise ValueError(f"{fact}; give a larger budget, or leave strict out to run it all the same")
        warnings.warn(f"{fact}, and runs all the same", stacklevel=4)
        return self.dial[0]

    def _pace(self, shape: Shape) -> Pace:
        """The pace of the shape's class; calibrates where there is none, one thread at a time."""
        name = calibrations.shape_class(shape)
        if name not in self._paces:
            with self._calibrating:
                if name not in self._paces:
                    kept = self._store.get(name)
                    if kept is None:
                        return self._measured(shape)
                    self._paces[name] = Pace(kept, self.dial)
        return self._paces[name]

    def _measured(self, shape: Shape) -> Pace:
        images = np.full(shape, 0.5, np.float32)
        times = calibrations.measure(lambda steps: self._forward(images, UNKNOWN_SIGMA, steps), self.dial)
        found, name = Calibration(shape, times), calibrations.shape_class(shape)
        self._store.put(name, found)
        self._paces[name] = Pace(found, self.dial)
        return self._paces[name]

    # --- calls

    def _run_confident(self, images: Images, sigma: float, confidence: float | Thresholds) -> Result:
        if self.kind != "classifier":
            raise ValueError(
                f"confidence is for classifiers; {self._file.path} is a {self.kind}: give steps or a budget"
            )
        thresholds = stages(confidence, self.dial)
        start = time.perf_counter()
        logits, ran = cascade(
            lambda steps, which: self._call(images if len(which) == len(images) else images[which], sigma, steps)[0],
            len(images),
            thresholds,
        )
        return Result(logits, int(ran.max()), (time.perf_counter() - start) * 1e3, ran)

    def _call(self, images: Images, sigma: float, steps: int) -> tuple[NDArray[np.float32], float]:
        """The output and the milliseconds, of which the pace learns."""
        start = time.perf_counter()
        output = self._forward(images, sigma, steps)
        taken = (time.perf_counter() - start) * 1e3
        pace = self._paces.get(calibrations.shape_class(images.shape))
        if pace is not None:
            with self._lock:
                pace.observe(steps, images.shape, taken)
        return output, taken

    def _forward(self, images: Images, sigma: float, steps: int) -> NDArray[np.float32]:
        feeds: dict[str, Any] = {"image": images}
        if "steps" in self._takes:
            feeds["steps"] = np.array(steps, np.int64)
        if "sigma" in self._takes:
            feeds["sigma"] = np.array(sigma, np.float32)
        (output,) = self._session.run(None, feeds)
        return np.asarray(output)

    # --- checks

    def _checked_steps(self, steps: int) -> int:
        try:
            setting = None if isinstance(steps, bool) else index(steps)
        except TypeError:
            setting = None
        if setting not in self.dial:
            raise ValueError(f"steps={steps!r} is not on this file's dial {self.dial}; choose one of these")
        return setting

    def _checked_sigma(self, sigma: float | None) -> float:
        if sigma is None:
            return UNKNOWN_SIGMA
        if "sigma" not in self._takes:
            raise ValueError(f"sigma={sigma} is for denoisers that take a noise level; {self._file.path} does not")
        if not _is_real(sigma) or not 0 <= sigma <= LARGEST_SIGMA:
            raise ValueError(
                f"sigma={sigma!r} is no noise level; give 0 to {LARGEST_SIGMA:g} (in 1/255), or None if unknown"
            )
        return float(sigma)

    def _checked_images(self, images: ArrayLike) -> Images:
        array, file = np.asarray(images), self._file
        if array.dtype.kind in "ui":
            raise ValueError(f"images are {array.dtype}; give float32 in [0, 1], e.g. images.astype('float32') / 255")
        if array.dtype.kind != "f":
            raise ValueError(f"images are {array.dtype}; give float32 in [0, 1]")
        if array.ndim != 4 or array.shape[1] != file.image_channels or len(array) < 1:
            raise ValueError(
                f"images have the shape {list(array.shape)}; this network takes "
                f"[N, {file.image_channels}, H, W], N at least 1"
            )
        if min(array.shape[2:]) < file.smallest_side:
            raise ValueError(
                f"images are {array.shape[2]} x {array.shape[3]} pixels; the smallest this network takes is "
                f"{file.smallest_side} x {file.smallest_side}"
            )
        for got, fixed in zip(array.shape, self._image_shape, strict=False):
            if isinstance(fixed, int) and got != fixed:
                raise ValueError(f"images have the shape {list(array.shape)}; this file takes {self._image_shape}")
        low, high = array.min(), array.max()
        if not (low >= LOWEST and high <= HIGHEST):  # not "<": a NaN is caught, too
            raise ValueError(f"images range from {low:g} to {high:g}; give finite values in [0, 1]")
        return np.ascontiguousarray(array, np.float32)


def _is_whole(value: object) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)


def _is_real(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def _budget(name: str, value: float) -> float:
    if not _is_real(value) or not value > 0:
        raise ValueError(f"{name}={value!r} is no budget; give a number above 0")
    return float(value)


def _open(path: Path, threads: int | None, providers: tuple[Provider, ...]) -> tuple[Any, str]:
    """onnxruntime's session, and its version."""
    try:
        import onnxruntime
    except ImportError:
        raise ImportError('onnxruntime is not installed; pip install "recurconv[onnx]"') from None
    known = onnxruntime.get_available_providers()
    if not providers or not {one if isinstance(one, str) else one[0] for one in providers} <= set(known):
        raise ValueError(f"providers={list(providers)}; this onnxruntime has {', '.join(known)}")
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # errors; it warns of what an exported network is by design
    if threads is not None:
        options.intra_op_num_threads = threads
    try:
        session = onnxruntime.InferenceSession(str(path), options, providers=list(providers))
    except Exception as error:  # its kinds have no common class but Exception
        reason = " ".join(str(error).split())
        raise ValueError(f"{path} cannot be loaded by onnxruntime {onnxruntime.__version__}: {reason}") from None
    return session, onnxruntime.__version__
