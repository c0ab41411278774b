"""``load``: a network from the shipped weights, a folder, or the Hugging Face Hub."""

from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

import torch

import recurconv.denoisers
import recurconv.networks  # noqa: F401  (the builders register themselves)
from recurconv import checkpoint
from recurconv._version import __version__
from recurconv.network import BUILDERS, Network, arguments_of


def load(source: str | Path) -> Network:
    """A trained network, in eval mode, on the CPU, in the dtype of the file.

    Args:
        source: the name of shipped weights ("r2-cifar10"), a folder that ``save_pretrained`` or a training run wrote,
            or "user/name" on the Hugging Face Hub; the first of these that there is. A folder that is called like
            shipped weights is taken as ``Path("r2-cifar10")`` or "./r2-cifar10".

    Raises:
        FileNotFoundError: there is no such thing, or a file of it is missing.
        ValueError: a file is broken, of a network that this version cannot make, or does not fit it.
    """
    folder = find(source)
    network = _build(checkpoint.read_config(folder), folder / checkpoint.CONFIG)
    tensors = checkpoint.read_tensors(folder / checkpoint.WEIGHTS)
    try:
        network.load_state_dict(tensors, assign=True)
    except ValueError as error:
        raise ValueError(f"{folder / checkpoint.WEIGHTS}: {error}") from None
    return network.eval()


def shipped() -> list[str]:
    """The names of the weights in this package."""
    return sorted(folder.name for folder in _shipped_folder().iterdir() if (folder / checkpoint.CONFIG).is_file())


def _shipped_folder() -> Path:
    return Path(str(resources.files("recurconv"))) / "weights"


def find(source: str | Path) -> Path:
    """The folder with the network's two files, found as ``load`` finds it.

    Raises:
        FileNotFoundError: there is none.
        ValueError: ``source`` is a file.
    """
    if isinstance(source, str) and source in shipped():
        return _shipped_folder() / source
    if not isinstance(source, str | Path):
        raise ValueError(f"a {type(source).__name__} is no source; give a shipped name, a folder or user/name")
    path = Path(source).expanduser()
    if path.is_dir():
        return path
    if path.exists():
        raise ValueError(f"{source} is a file; give the folder that holds {checkpoint.CONFIG} and {checkpoint.WEIGHTS}")
    if isinstance(source, str) and source.count("/") == 1:
        return _download(source)
    raise FileNotFoundError(f"{source} is neither a folder nor shipped weights ({', '.join(shipped())})")


def _download(repository: str) -> Path:
    """The files from the Hub, of one revision; from its cache where there is no network."""
    from huggingface_hub import snapshot_download  # here, because it takes a while and few calls need it
    from huggingface_hub.errors import HFValidationError

    nowhere = f"{repository} is neither a folder nor shipped weights ({', '.join(shipped())})"
    try:
        folder = snapshot_download(
            repository, allow_patterns=[checkpoint.CONFIG, checkpoint.WEIGHTS, checkpoint.RECIPE]
        )
    except (OSError, HFValidationError) as error:  # of the Hub's errors, those that a name or a network causes
        reason = str(error).strip().split("\n")[0]
        raise FileNotFoundError(f"{nowhere}, and the Hugging Face Hub does not give it: {reason}") from None
    return Path(folder)


def _build(config: Mapping[str, Any], path: Path) -> Network:
    """The network of a config, without values: they come from the file, whose shapes are checked first."""
    name, arguments = config["network"], config["arguments"]
    version = config.get("recurconv", __version__)
    wrote = "" if version == __version__ else f" (recurconv {version} wrote it, this is {__version__})"
    if name not in BUILDERS:
        raise ValueError(f"{path}: network {name!r} is unknown; there are {', '.join(sorted(BUILDERS))}{wrote}")
    known = arguments_of(BUILDERS[name])
    unknown = [key for key in arguments if key not in known]
    if unknown:
        raise ValueError(f"{path}: {name} does not take {', '.join(unknown)}; it takes {', '.join(known)}{wrote}")
    try:
        with torch.device("meta"):
            return BUILDERS[name](**arguments)
    except (TypeError, ValueError, RuntimeError) as error:
        reason = str(error).split("\n")[0]
        raise ValueError(f"{path}: {name} cannot be made with these arguments: {reason}{wrote}") from None
