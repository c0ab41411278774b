"""The device that a user names."""

import torch


def choose_device(name: str, processes: int = 1) -> torch.device:
    """The device that a user names, checked.

    Args:
        name: "auto", "cpu", "cuda" or "cuda:N"; "auto" is CUDA where there is a device for it.
        processes: how many of this machine share its devices, each with one of its own.

    Raises:
        ValueError: it is none of these, or this machine does not have it.
    """
    kind, colon, index = name.partition(":")
    if kind not in ("auto", "cpu", "cuda") or (colon and not (kind == "cuda" and index.isdecimal())):
        raise ValueError(f"device={name!r} is not known; choose auto, cpu, cuda or cuda:N")
    present = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if kind == "cpu" or (kind == "auto" and not present):
        return torch.device("cpu")
    if index and processes > 1:
        raise ValueError(f"device={name!r}: there are {processes} processes here; give cuda, each takes its own")
    if max(int(index or 0) + 1, processes) > present:
        wanted = f" for {processes} processes" if processes > 1 else ", numbered from 0"
        raise ValueError(f"device={name!r}: PyTorch sees {present} CUDA devices here{wanted}; choose another, or cpu")
    return torch.device("cuda", int(index)) if index else torch.device("cuda")
