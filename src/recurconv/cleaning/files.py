"""Picture files made clean: which file comes from which, and one of them."""

import glob
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from recurconv import imaging
from recurconv.cleaning.cleaner import Cleaned, Cleaner
from recurconv.cleaning.tiles import Done
from recurconv.data.pictures import list_pictures
from recurconv.memory import is_out_of_memory


@dataclass(frozen=True)
class Job:
    """A picture file and where it goes; ``named``: the target's name was chosen by the user."""

    source: Path
    target: Path
    named: bool = False


@dataclass(frozen=True)
class Made:
    """What became of a file: its size in pixels, then as in ``Cleaned``; and how many seconds it took."""

    target: Path
    width: int
    height: int
    sigma: float
    steps: int
    coarse: bool
    seconds: float


def jobs(sources: Sequence[str], out: Path) -> list[Job]:
    """Pair what is read with what is written.

    Args:
        sources: files, folders, which are searched with their subfolders, and patterns such as "scans/**/*.png".
        out: the file to write where one file is read, unless it is a folder or has no suffix; else a folder, in which
            files lie as in the folder they come from.

    Raises:
        ValueError: nothing matches a pattern, a folder holds no picture, two pictures would go into one file, or
            ``out`` is a file where a folder is needed, or "-".
    """
    if str(out) == "-":
        raise ValueError("-o -: pictures are not written to standard output; give a file or a folder")
    if "" in sources:
        raise ValueError("a name of a picture or folder is empty; give one, or . for this folder")
    if ".." in out.parts:  # so that what is there is seen although folders on the way are yet to be made
        out = out.resolve()
    if len(sources) == 1 and out.suffix and not out.is_dir() and not _many(sources[0]):
        return [Job(Path(sources[0]), out, named=True)]
    if out.exists() and not out.is_dir():
        raise ValueError(f"{out} is a file; give a folder, or for one picture a name with a suffix such as .png")
    found = [Job(path, out / inside) for source in sources for path, inside in _found(source, out)]
    taken: dict[Path, Path] = {}
    for job in found:
        if taken.setdefault(job.target, job.source) != job.source:
            raise _both(taken[job.target], job.source, job.target)
    return list({job.target: job for job in found}.values())


def clean_file(
    job: Job,
    cleaner: Cleaner,
    *,
    overwrite: bool = False,
    written: dict[Path, Path] | None = None,
    done: Done = lambda count, of: None,
) -> Made:
    """Read a picture, make it clean, write it with its transparency, colour profile and metadata.

    Colour that full transparency hides is filled from around before, and comes out as it was. A format that is read
    and not written, or that cannot hold the picture, becomes PNG or TIFF by a suffix behind the name, unless the user
    named the file.

    Args:
        job: which file, and where it goes.
        cleaner: what makes it clean.
        overwrite: replace a file that is there, unless it is in ``written``.
        written: the files that were written beside this one, each with its source; this one is added.
        done: told after each tile, how many are done and how many there are.

    Raises:
        ValueError, OSError: the picture cannot be read or written; or the file is there and ``overwrite`` is not set.
        ImportError: what reads pictures or judges noise is not installed.
    """
    written = {} if written is None else written
    _check_free(job, job.target, overwrite, written)
    start = time.perf_counter()
    picture = imaging.read(job.source)
    target = job.target
    if (suffix := imaging.suffix_for(picture, target.suffix)) != target.suffix:
        if job.named:
            raise ValueError(f"{target}: {_kind(picture)} is not written as {target.suffix}; {suffix} holds it")
        target = target.with_name(target.name + suffix)
        _check_free(job, target, overwrite, written)
    try:
        clean = _clean(picture, cleaner, done)
    except (ValueError, MemoryError) as error:
        raise type(error)(f"{job.source}: {error}") from None
    except RuntimeError as error:
        if is_out_of_memory(error):
            raise MemoryError(f"{job.source}: there is too little memory for it; take a smaller --tile") from None
        raise
    imaging.write(replace(picture, pixels=clean.pixels), target, overwrite=overwrite)
    written[target] = job.source
    height, width = picture.pixels.shape[:2]
    return Made(target, width, height, clean.sigma, clean.steps, clean.coarse, time.perf_counter() - start)


def _clean(picture: imaging.Picture, cleaner: Cleaner, done: Done) -> Cleaned:
    if picture.alpha is None:
        return cleaner.clean(picture.pixels, done=done)
    visible = picture.alpha > 0
    clean = cleaner.clean(imaging.fill_hidden(picture.pixels, picture.alpha), visible, done)
    hidden = ~visible if picture.pixels.ndim == 2 else ~visible[..., None]
    np.copyto(clean.pixels, picture.pixels, where=hidden)  # an index of hidden pixels could be larger than the picture
    return clean


def _both(first: Path, second: Path, target: Path) -> ValueError:
    return ValueError(f"{first} and {second} would both become {target}; run them apart")


def _check_free(job: Job, target: Path, overwrite: bool, written: Mapping[Path, Path]) -> None:
    """What ``imaging.write`` says at the end, before the work is done; and that nothing else was written there."""
    if target in written:
        raise _both(written[target], job.source, target)
    if target.exists() and job.source.exists() and target.samefile(job.source):
        raise ValueError(f"{job.source}: would be replaced by its own result; write to another file or folder")
    if os.path.lexists(target) and not overwrite:
        raise FileExistsError(f"{target} is there already; give --overwrite to replace it")


def _kind(picture: imaging.Picture) -> str:
    """A picture in words."""
    depth = {"uint8": "8-bit", "uint16": "16-bit"}.get(str(picture.pixels.dtype), "float")
    colour = "gray" if picture.pixels.ndim == 2 else "colour"
    return f"{depth} {colour}{'' if picture.alpha is None else ' with alpha'}"


def _many(source: str) -> bool:
    return Path(source).is_dir() or (glob.has_magic(source) and not Path(source).exists())


def _found(source: str, out: Path) -> Iterator[tuple[Path, Path]]:
    """The files of a source, each with its place in the folder to write."""
    path = Path(source)
    if path.is_dir():
        root, files = path, list_pictures(path)
    elif _many(source):
        plain = next(number for number, part in enumerate(path.parts) if glob.has_magic(part))
        if ".." in path.parts[plain:]:
            raise ValueError(f"{source}: a pattern has no .. behind its first * or ?; start it from the folder above")
        root = Path(*path.parts[:plain])
        files = sorted(file for file in map(Path, glob.glob(source, recursive=True)) if file.is_file())
        if not files:
            raise ValueError(f"no file matches {source}")
    else:
        yield path, Path(path.name)
        return
    inside = out.resolve()
    # What was written into the folder before is not read again.
    fresh = [file for file in files if inside == root.resolve() or inside not in file.resolve().parents]
    yield from ((file, file.relative_to(root)) for file in fresh)
