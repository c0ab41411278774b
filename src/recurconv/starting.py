"""Starting a training run from the weights of a trained network."""

from typing import Any

from recurconv.network import Network
from recurconv.networks import Head


def take_weights(network: Network, source: Network, name: str) -> None:
    """Give a network the weights and norm statistics of a trained one.

    The last layer of a classifier for other classes stays as it is.

    Args:
        network: the one to train; changed in place.
        source: the trained one.
        name: of the source, for messages.

    Raises:
        ValueError: it is another network; what differs is named.
    """
    tensors = source.state_dict()
    if network.class_names != source.class_names:
        own = network.state_dict()
        heads = tuple(f"{path}." for path, module in network.named_modules() if isinstance(module, Head))
        tensors = {key: own.get(key, value) if key.startswith(heads) else value for key, value in tensors.items()}
    try:
        network.load_state_dict(tensors)
    except ValueError:
        raise ValueError(f"init={name} is another network than this recipe's: {_difference(source, network)}") from None


def _difference(source: Network, network: Network) -> str:
    """In words, of two networks whose tensors differ."""
    theirs, ours = source.config, network.config
    if theirs["network"] != ours["network"]:
        return f"it is of {theirs['network']}, the recipe of {ours['network']}"
    of_data = ("num_classes", "class_names", "image_size", "mean", "std")
    pairs: dict[str, tuple[Any, Any]] = {
        key: (theirs["arguments"].get(key), value) for key, value in ours["arguments"].items() if key not in of_data
    }
    listed = [f"{key} is {theirs} there and {ours} here" for key, (theirs, ours) in pairs.items() if theirs != ours]
    return f"{', '.join(listed)}; make them alike by --set"
