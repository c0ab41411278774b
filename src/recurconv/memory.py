"""Too little memory, which Python and PyTorch tell in different ways."""


def is_out_of_memory(error: Exception) -> bool:
    """Whether an error says that memory does not suffice; PyTorch's is a RuntimeError, of a CPU one without a class."""
    if isinstance(error, RuntimeError):
        return any(words in str(error) for words in ("out of memory", "allocate memory"))
    return isinstance(error, MemoryError)
