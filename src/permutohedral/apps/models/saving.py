"""Networks as files: the weights, and as metadata the arguments that build the network."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import nn

from permutohedral.errors import DataError

Network = TypeVar("Network", bound=nn.Module)


def save_network(network: nn.Module, options: dict[str, Any], path: str | Path) -> None:
    """Write a network for `load_network`; `options` are the arguments of its class, as JSON."""
    from safetensors.torch import save

    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in network.state_dict().items()}
    # safetensors itself would make the file readable for its owner only
    Path(path).write_bytes(save(tensors, metadata={_key(type(network)): json.dumps(options)}))


def load_network(kind: type[Network], path: str | Path) -> Network:
    """Read a network that `save_network` wrote, in evaluation mode on the CPU.

    Raises `DataError` if the file is missing, damaged, or of another class. A small file can claim a network of any
    size, so shapes are compared before memory is allocated.
    """
    try:
        from safetensors import safe_open
    except ModuleNotFoundError as error:
        error.add_note("networks with weights need an extra: pip install 'permutohedral[images]'")
        raise
    try:
        with safe_open(path, "pt") as file:
            options = json.loads((file.metadata() or {}).get(_key(kind), "null"))
            names = list(file.keys())
            if options is None or any(len(part) > len(names) for part in options.values() if isinstance(part, list)):
                raise DataError(f"{path} is not a {kind.__name__}; write one with {kind.__name__}.save")
            with torch.device("meta"):
                claimed = {name: list(tensor.shape) for name, tensor in kind(**options).state_dict().items()}
            if claimed != {name: file.get_slice(name).get_shape() for name in names}:
                raise DataError(f"{path} has weights of other shapes than the network it describes")
            with torch.device("cpu"):
                network = kind(**options)
            # the tensors of the file, whatever the default dtype
            network.load_state_dict({name: file.get_tensor(name) for name in names}, assign=True)
    except DataError:
        raise
    # readers raise any exception for a damaged file
    except Exception as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise DataError(f"cannot read the network {path}: {reason}") from error
    return network.eval()


def _key(kind: type[nn.Module]) -> str:
    return kind.__name__
