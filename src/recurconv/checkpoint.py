"""Network files: ``config.json`` and ``model.safetensors`` in one folder; strict, explained loading."""

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch.nn.parameter import is_lazy

from recurconv._version import __version__
from recurconv.files import write_atomically, write_json

CONFIG, WEIGHTS, RECIPE = "config.json", "model.safetensors", "recipe.json"


def write(folder: Path, config: Mapping[str, Any], tensors: Mapping[str, torch.Tensor]) -> None:
    """Write a network's config and tensors into ``folder``.

    Raises:
        OSError: it cannot be written, as on a full disk; what was there stays.
    """
    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    try:
        write_atomically(folder / WEIGHTS, lambda path: save_file(plain, path, metadata={"format": "pt"}))
    except SafetensorError as error:
        raise OSError(f"{folder / WEIGHTS} cannot be written: {error}") from error
    write_json(folder / CONFIG, {**config, "recurconv": __version__})


def read_config(folder: Path) -> dict[str, Any]:
    """The config in ``folder``.

    Raises:
        FileNotFoundError: there is none.
        ValueError: it is not a config of this package.
    """
    path = folder / CONFIG
    if not path.is_file():
        raise FileNotFoundError(f"{folder} holds no {CONFIG}; give a folder that save_pretrained or a run wrote")
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise ValueError(f"{path} is not JSON: {error}") from None
    fields = config if isinstance(config, dict) else {}
    if not isinstance(fields.get("network"), str) or not isinstance(fields.get("arguments"), dict):
        raise ValueError(f'{path} is not a recurconv config: it needs "network", a name, and "arguments", an object')
    return fields


def read_tensors(path: Path) -> dict[str, torch.Tensor]:
    """The tensors in a safetensors file.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it is truncated or of another format.
    """
    if not path.is_file():
        raise FileNotFoundError(f"{path} is not there; give a folder that save_pretrained or a run wrote")
    try:
        return load_file(path)
    except SafetensorError as error:
        raise ValueError(f"{path} is truncated or not a safetensors file: {error}") from None


def _bare(name: str) -> str:
    """The name without the parts that DDP ("module") and torch.compile ("_orig_mod") put into it."""
    return ".".join(part for part in name.split(".") if part not in ("module", "_orig_mod"))


def fit_names(tensors: Mapping[str, torch.Tensor], expected: Iterable[str]) -> dict[str, torch.Tensor]:
    """The tensors under the names that the network has for them, whatever DDP and torch.compile put into either.

    A body may have a submodule that is honestly called "module": such a name stays. So does one that fits nothing.

    Raises:
        ValueError: two tensors would have one name.
    """
    own = list(expected)
    bare = {_bare(name): name for name in own}
    if len(bare) < len(own):  # the network tells names apart by these parts alone: take them as they are
        return dict(tensors)
    source: dict[str, str] = {}
    for name in tensors:
        target = bare.get(_bare(name), name)
        if target in source:
            raise ValueError(
                f'{source[target]} and {name} are both {target} without the prefixes "module." and "_orig_mod."; '
                "the file mixes two networks: save the state dict of one"
            )
        source[target] = name
    return {target: tensors[name] for target, name in source.items()}


def fit_versions(versions: Mapping[str, Any], modules: Iterable[str]) -> dict[str, Any]:
    """What a state dict says of each module's version, under the names that the network has for its modules."""
    bare = {_bare(name): name for name in modules}
    return {bare.get(_bare(name), name): version for name, version in versions.items()}


def dial_in(names: Iterable[str]) -> str:
    """The dial that the names in a state dict tell of, in words."""
    rows, steps, untied = set(), set(), set()
    for name in names:
        if found := re.search(r"\bbank\.(?:row(\d+)_)?step(\d+)\.", name):
            steps.add(int(found[2]) + 1)
            rows |= {int(found[1])} if found[1] else set()
        elif found := re.search(r"\bbodies\.(\d+)\.", name):
            untied.add(int(found[1]) + 1)
    if rows:
        return str(tuple(sorted(rows)))
    if untied:
        return f"({max(untied)},), untied"
    return f"up to {max(steps)}" if steps else "not told by its names"


def _has_shape(tensor: Any) -> bool:
    """Whether it is a tensor that has its shape: not a module's extra state, and no lazy layer's."""
    return isinstance(tensor, torch.Tensor) and not is_lazy(tensor)


def check_fit(tensors: Mapping[str, torch.Tensor], expected: Mapping[str, torch.Tensor], dial: tuple[int, ...]) -> None:
    """Raise ValueError that names every tensor that is missing, unexpected or of another shape."""
    missing = [name for name in expected if name not in tensors]
    unexpected = [name for name in tensors if name not in expected]
    reshaped = [
        f"{name} {list(tensors[name].shape)} instead of {list(expected[name].shape)}"
        for name in expected
        if name in tensors and _has_shape(tensors[name]) and _has_shape(expected[name])
        if tensors[name].shape != expected[name].shape
    ]
    first = next(iter(tensors), "").split(".")[0] + "."
    if tensors and len(missing) == len(expected) and all(name.removeprefix(first) in expected for name in tensors):
        raise ValueError(f"every tensor's name begins with {first!r}, as in a larger module; take that off the names")
    problems = [
        f"{len(names)} {what}: {', '.join(names)}"
        for what, names in (("missing", missing), ("unexpected", unexpected), ("of another shape", reshaped))
        if names
    ]
    if problems:
        raise ValueError(
            f"these tensors do not fit this network (dial of the file: {dial_in(tensors)}; of the network: {dial}); "
            + "; ".join(problems)
        )
