"""What figures are drawn from: filters and pictures in files, or those that come with the package and scikit-image."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from figures.filters import neighborhood_with_taps
from permutohedral.errors import InputError
from permutohedral.ops.neighborhood import gaussian_weight

# of 255, the noise of the paper
_NOISE = 25.0


def shipped_filters() -> dict[str, Tensor]:
    """The filter over (y, x, gray) that denoises, and the Gaussian it began as; `[65]` each."""
    from permutohedral.models.denoising import PermutohedralDenoiser
    from permutohedral.models.pretrained import load_pretrained

    model, _ = load_pretrained("pcnn", _NOISE)
    assert isinstance(model, PermutohedralDenoiser)
    return {"Gaussian": gaussian_weight(3, 2), "trained": model.convolution.weight.detach().flatten()}


def read_filters(path: Path, name: str | None) -> dict[str, Tensor]:
    """The filters `[taps]` of a tensor `[taps]` or `[taps, inputs, outputs]`, by title.

    Args:
        path: a .safetensors or .npy file.
        name: of the tensor in a .safetensors file; None if only one fits.
    """
    tensors = _read_tensors(path)
    if name is None:
        fitting = [key for key, tensor in tensors.items() if _is_filter(tensor)]
        if len(fitting) != 1:
            names = ", ".join(fitting or tensors)
            raise InputError(f"{path} holds {len(fitting)} filters; name the tensor, one of: {names}")
        name = fitting[0]
    if name not in tensors:
        raise InputError(f"{path} holds no tensor {name!r}, but: {', '.join(tensors)}")
    tensor = tensors[name]
    if tensor.dim() not in (1, 3) or tensor.numel() == 0:
        raise InputError(f"a filter is [taps] or [taps, inputs, outputs], but {name!r} is {list(tensor.shape)}")
    neighborhood_with_taps(len(tensor))
    if tensor.dim() == 1 or tensor[0].numel() == 1:
        return {"filter": tensor.flatten()}
    _, inputs, outputs = tensor.shape
    return {f"{i} to {o}": tensor[:, i, o] for o in range(outputs) for i in range(inputs)}


def _is_filter(tensor: Tensor) -> bool:
    if tensor.dim() not in (1, 3) or len(tensor) < 2:
        return False
    try:
        neighborhood_with_taps(len(tensor))
    except InputError:
        return False
    return True


def _read_tensors(path: Path) -> dict[str, Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        if path.suffix == ".npy":
            return {path.stem: torch.from_numpy(np.load(path, allow_pickle=False)).double()}
        return {name: tensor.double() for name, tensor in load_file(path).items()}
    except (OSError, ValueError, TypeError, SafetensorError) as error:
        raise InputError(f"cannot read weights from {path}: {error}") from error


def gray_picture(path: Path | None) -> Tensor:
    """A picture as gray values `[height, width]` between 0 and 1; by default a photograph of scikit-image."""
    if path is None:
        from skimage import data

        return torch.from_numpy(data.camera())[::2, ::2].float() / 255
    from permutohedral.files.formats.image import read_image

    return read_image(path).pixels.mean(dim=0)
