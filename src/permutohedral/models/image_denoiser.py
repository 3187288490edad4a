"""Denoising of gray or color images of any size and noise level, in bounded memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from permutohedral.errors import InputError
from permutohedral.lattice.features import opponent_colors
from permutohedral.models.deep_denoising import DeepDenoiser
from permutohedral.models.denoising import CombinedDenoiser, PermutohedralDenoiser, SpatialDenoiser
from permutohedral.models.noise_level import estimate_noise
from permutohedral.models.pretrained import DEFAULT_MODEL, choose_model, load_pretrained
from permutohedral.ops.tensors import check_tensor

# rounding to 8 bits causes 0.29 / 255
NO_NOISE = 0.5 / 255
# feature units: 2.45 for a filter of size 2, and 1.23 for a simplex at either end
_REACH = 5.0
# larger tiles allocate tensors that the C library returns to the system, and their page faults take as long as margins
_TILE = 416
# on photos with noise of 25 the shipped network reaches farther by at most 0.5 of 255, and 0.0003 dB
_MAX_MARGIN = 48


@dataclass(frozen=True)
class Denoiser:
    """Denoise images with a shipped model.

    The image is scaled so that its noise has the strength that the model was trained for. Color is denoised in
    opponent colors, which have independent noise of the same strength. Tiles overlap by the reach of the model, at most
    48 pixels, so the result is that of the whole image but for less than a level of 8 bits. The root mean square change
    is limited to the strength of the noise.

    Attributes:
        model: "auto" or one of `shipped_models()`; see `choose_model`.
        tile: height and width of a tile; default 416.
        device: torch device.

    >>> import torch, permutohedral as ph
    >>> denoise = ph.models.Denoiser.from_pretrained()
    >>> denoise(torch.rand(3, 40, 50), sigma=25 / 255).shape
    torch.Size([3, 40, 50])
    """

    model: str = DEFAULT_MODEL
    tile: int | None = None
    device: str = "cpu"

    @classmethod
    def from_pretrained(cls, model: str = DEFAULT_MODEL, *, tile: int | None = None, device: str = "cpu") -> Denoiser:
        """Return a denoiser with shipped weights; they are loaded with the first image, whose noise decides."""
        return cls(model, tile, device)

    def __post_init__(self) -> None:
        if self.tile is not None and self.tile < 1:
            raise InputError(f"tile must be at least 1, got {self.tile}")
        choose_model(self.model)

    def choose(self, channels: int, sigma: float) -> str:
        """Return the model for an image with this number of channels and this noise; see `choose_model`."""
        return choose_model(self.model, _gray_noise(channels, sigma))

    @torch.no_grad()
    def __call__(
        self, pixels: Tensor, sigma: float | None = None, progress: Callable[[float], None] | None = None
    ) -> Tensor:
        """Denoise an image.

        Args:
            pixels: float32 `[1 or 3, height, width]`; white is 1.
            sigma: standard deviation of the noise in the same units, such as 25 / 255; default estimated.
            progress: called with the share that is done after each tile.

        Returns:
            float32 of the same shape, not clipped.
        """
        check_tensor("pixels", pixels)
        if pixels.dim() != 3 or pixels.shape[0] not in (1, 3):
            raise InputError(f"pixels must be [1 or 3, height, width], got shape {tuple(pixels.shape)}")
        if pixels.dtype != torch.float32:
            scale = "" if pixels.is_floating_point() else " / 255"
            raise InputError(f"pixels must be float32 in [0, 1], got {pixels.dtype}; pass pixels.float(){scale}")
        if not bool(pixels.isfinite().all()):
            raise InputError("pixels must be finite, got NaN or infinity; fill them, such as with torch.nan_to_num")
        sigma = estimate_noise(pixels) if sigma is None else sigma
        if not 0 <= sigma <= 1:
            raise InputError(
                f"sigma must be at least 0 and at most 1, since white is 1, got {sigma:g}; divide sigma by 255, and "
                "pixels in [0, 255], too"
            )
        if sigma < NO_NOISE:
            return pixels.clone()
        name = self.choose(pixels.shape[0], sigma)
        # contrasts beyond those in training harm deep networks only
        level = _gray_noise(pixels.shape[0], sigma) if name.startswith("deep") else 255 * sigma
        model, trained_for = load_pretrained(name, level)
        # 24 channels of 512 x 512 are convolved in half the time on a CPU; torch's types do not know the argument
        model = model.to(self.device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        factor = trained_for / (255 * sigma)
        step = model.step if isinstance(model, DeepDenoiser) else 1
        margin = math.ceil(_margin(model) / step) * step
        opponent = _opponent_matrix() if pixels.shape[0] == 3 else torch.eye(1)
        shift = _shift(model, opponent, factor)
        denoised, squared_change = torch.empty_like(pixels), 0.0
        height, width = pixels.shape[1:]
        tiles = list(_tiles(height, width, math.ceil((self.tile or _TILE) / step) * step))
        for done, (rows, columns) in enumerate(tiles, start=1):
            top, left = max(0, rows.start - margin), max(0, columns.start - margin)
            part = pixels[:, top : rows.stop + margin, left : columns.stop + margin]
            planes = (torch.einsum("oc,chw->ohw", opponent, part * factor) + shift)[:, None].to(self.device)
            # one plane at a time needs a third of the memory
            filtered = torch.cat([model(plane[None], origin=(top, left)) for plane in planes])[:, 0].cpu()
            restored = torch.einsum("oc,ohw->chw", opponent, filtered - shift) / factor
            inside = restored[:, rows.start - top : rows.stop - top, columns.start - left : columns.stop - left]
            denoised[:, rows, columns] = inside
            squared_change += float((inside - pixels[:, rows, columns]).square().sum(dtype=torch.float64))
            if progress is not None:
                progress(done / len(tiles))
        change = math.sqrt(squared_change / max(pixels.numel(), 1))
        return denoised if change <= sigma else denoised.lerp_(pixels, 1 - sigma / change)


def _gray_noise(channels: int, sigma: float) -> float:
    """Return the noise of 255 in a gray image of the same ratio of contrast to noise.

    The gray plane of a color image has larger contrasts, and the same noise.
    """
    return 255 * sigma / math.sqrt(channels)


def _opponent_matrix() -> Tensor:
    """Return the orthonormal matrix of `opponent_colors`."""
    return opponent_colors(torch.eye(3, dtype=torch.float64)[..., None])[..., 0].float()


def _shift(model: torch.nn.Module, opponent: Tensor, factor: float) -> Tensor:
    """Return the offset of each plane, `[planes, 1, 1]`: deep networks expect values around middle gray."""
    if not isinstance(model, DeepDenoiser):
        return torch.zeros(len(opponent), 1, 1)
    return (0.5 - 0.5 * factor * opponent.sum(dim=1))[:, None, None]


def _tiles(height: int, width: int, size: int) -> Iterator[tuple[slice, slice]]:
    for top in range(0, height, size):
        for left in range(0, width, size):
            yield slice(top, min(top + size, height)), slice(left, min(left + size, width))


def _margin(model: torch.nn.Module) -> int:
    """Return the number of pixels around a tile that its result depends on."""
    if isinstance(model, SpatialDenoiser):
        return model.weight.shape[-1] // 2
    if isinstance(model, PermutohedralDenoiser):
        return math.ceil(_REACH * model.sigma_space)
    if isinstance(model, CombinedDenoiser):
        return max(_margin(model.spatial), _margin(model.permutohedral))
    if isinstance(model, DeepDenoiser):
        return min(model.reach, _MAX_MARGIN)
    raise InputError(f"model must be a denoiser of this package, got {type(model).__name__}")
