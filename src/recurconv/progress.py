"""Progress of a run: a bar with rate, time left, loss and held-out results; lines with --quiet; TensorBoard."""

from pathlib import Path
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    ProgressColumn,
    Task,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.progress import Progress as Bar
from rich.text import Text


class _Rate(ProgressColumn):
    def render(self, task: Task) -> Text:
        return Text(f"{task.speed:.1f} it/s" if task.speed else "", style="cyan")


class Progress:
    """Shows how a run goes, on the error stream. Use as a context.

    Args:
        start: the iteration at which it starts.
        iterations: at which it ends.
        quiet: a line for each epoch instead of the bar.
        tensorboard: a folder to write event files into, or None.

    Raises:
        ValueError: TensorBoard is asked for and not installed.
    """

    def __init__(self, start: int, iterations: int, *, quiet: bool = False, tensorboard: Path | None = None) -> None:
        self.console = Console(stderr=True)
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            _Rate(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[loss]}"),
        )
        self.bar = Bar(*columns, console=self.console, disable=quiet)
        self.task = self.bar.add_task("training", total=iterations, completed=start, loss="")
        self.smooth: float | None = None
        self.writer_class, self.folder = _writer_class() if tensorboard else None, tensorboard
        self.writer: Any = None

    def __enter__(self) -> "Progress":
        if self.writer_class is not None:
            self.writer = self.writer_class(self.folder)
        self.bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.bar.stop()
        if self.writer is not None:
            self.writer.close()

    def advance(self, iteration: int, loss: float | None) -> None:
        """Iterations done so far, and the mean loss since the last call."""
        if loss is None:
            return
        self.smooth = loss if self.smooth is None else 0.95 * self.smooth + 0.05 * loss
        self.bar.update(self.task, completed=iteration, loss=f"loss {self.smooth:.4f}")
        if self.writer is not None:
            self.writer.add_scalar("loss", loss, iteration)

    def epoch(self, row: dict[str, Any]) -> None:
        """The results at an epoch's end, a row of ``metrics.jsonl``: one line, a value for each setting."""
        words = [f"epoch {row['epoch']}", f"{row['seconds'] / 60:.1f} min", f"loss {row['loss']:.4f}"]
        for name, values in row.items():
            if name.startswith("held_out"):
                shown = "  ".join(f"{value:.2f} at {steps}" for steps, value in values.items())
                words.append(f"{name.replace('_', '-')} {shown}")
                if self.writer is not None:
                    for steps, value in values.items():
                        self.writer.add_scalar(f"{name}/steps {steps}", value, row["iteration"])
        self.note("  ".join(words))

    def note(self, text: str) -> None:
        """A line above the bar."""
        self.console.print(text, markup=False, highlight=False, soft_wrap=True)


def _writer_class() -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise ValueError("TensorBoard is not installed; pip install 'recurconv[tensorboard]'") from None
    return SummaryWriter
