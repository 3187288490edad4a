"""Denoising of gray or color images of any size and noise level, in bounded memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

import permutohedral as ph
from permutohedral.apps.models.network import DeepDenoiser
from permutohedral.apps.models.noise_level import estimate_noise
from permutohedral.apps.models.saving import load_network, save_network
from permutohedral.errors import InputError

# rounding to 8 bits causes 0.29 / 255
NO_NOISE = 0.5 / 255
# images with a large range may exceed 1
_MAX_WHITE = 16.0
# largest factor of the contrast of a gray image
_MAX_SCALE = 4.0
# larger tiles allocate tensors that the C library returns to the system, and their page faults take as long as margins
_TILE = 416
# on photos with noise of 25 the shipped network reaches farther by at most 0.5 of 255, and 0.0003 dB
_MAX_MARGIN = 48
# largest variance within squares of 2 x 2 pixels of a plane of half the resolution, relative to that of noise
_MAX_DETAIL = 1.05
# side of the square around a pixel whose mean change is limited
_WINDOW = 15

Pixels = TypeVar("Pixels", Tensor, NDArray[Any])
_SHIPPED = Path(__file__).parent / "weights" / "denoiser.safetensors"
# rows and columns
Place = tuple[slice, slice]


class Denoiser(nn.Module):
    """Denoise gray or color images with networks for several strengths of the noise.

    The image is scaled so that its noise has the strength that the nearest network was trained for. Color is denoised
    in opponent colors, which have independent noise of the same strength. A color difference without detail beyond the
    noise is denoised at half the resolution, which takes less time and leaves less error. Tiles overlap by the reach of
    the network, at most 48 pixels, so the result is that of the whole image but for less than a level of 8 bits. The
    root mean square change around each pixel is limited to the strength of the noise, so that strong patterns survive
    that the networks do not know. Runs without gradients.

    Args:
        noise_levels: standard deviations of the noise that the networks are trained for, one network each; white is
            255.
        tile: height and width of a tile in pixels.
        options: arguments of each network; see `DeepDenoiser`.

    >>> import torch, permutohedral as ph
    >>> denoise = ph.apps.Denoiser.from_pretrained()
    >>> denoise(torch.rand(2, 3, 40, 50), sigma=25 / 255).shape
    torch.Size([2, 3, 40, 50])
    """

    opponent: Tensor

    def __init__(self, noise_levels: Sequence[float] = (25.0,), *, tile: int = _TILE, **options: Any) -> None:
        super().__init__()
        if tile < 1:
            raise InputError(f"tile must be at least 1, got {tile}")
        if not noise_levels or not all(0 < level <= 255 for level in noise_levels):
            raise InputError(f"noise_levels must be numbers in (0, 255], got {list(noise_levels)}")
        self.noise_levels, self.tile, self._options = tuple(noise_levels), tile, options
        self.networks = nn.ModuleList(DeepDenoiser(**options) for _ in noise_levels)
        self.register_buffer("opponent", _opponent_matrix(), persistent=False)

    @classmethod
    def from_pretrained(cls, path: str | Path | None = None, *, tile: int = _TILE) -> Denoiser:
        """Read networks that `save` wrote; by default those of the package, for noise of 5, 11 and 25 of 255.

        Raises:
            DataError: the file is missing, damaged, or not a denoiser.
        """
        denoiser = load_network(
            cls, Path(__file__).parent / "weights" / "denoiser.safetensors" if path is None else path
        )
        denoiser.tile = tile
        # 24 channels of 512 x 512 are convolved in half the time on a CPU; torch's types do not know the argument
        return denoiser.to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]

    def save(self, path: str | Path) -> None:
        """Write the networks for `from_pretrained`."""
        save_network(self, {"noise_levels": self.noise_levels, **self._options}, path)

    def network_for(self, noise: float) -> tuple[DeepDenoiser, float]:
        """Return the network for the nearest noise, white is 255, and the noise that it is trained for."""
        index = min(range(len(self.networks)), key=lambda number: abs(math.log(self.noise_levels[number] / noise)))
        network = self.networks[index]
        assert isinstance(network, DeepDenoiser)
        return network, self.noise_levels[index]

    @torch.no_grad()
    def forward(
        self, pixels: Pixels, sigma: float | None = None, progress: Callable[[float], None] | None = None
    ) -> Pixels:
        """Denoise an image or a batch.

        Args:
            pixels: float32 `[1 or 3, height, width]` or `[batch, 1 or 3, height, width]`, a tensor on any device or a
                NumPy array; white is 1.
            sigma: standard deviation of the noise in the same units, such as 25 / 255; default estimated for each
                image.
            progress: called with the share that is done after each tile.

        Returns:
            float32 of the same shape, type and device, not clipped.
        """
        images = torch.from_numpy(pixels) if isinstance(pixels, np.ndarray) else pixels
        _check_pixels(images)
        if sigma is not None and not 0 <= sigma <= 1:
            raise InputError(
                f"sigma must be at least 0 and at most 1, since white is 1, got {sigma:g}; divide sigma by 255"
            )
        batch = images if images.dim() == 4 else images[None]
        result = torch.empty_like(batch)
        done = 0

        def report(share: float) -> None:
            if progress is not None:
                progress((done + share) / len(batch))

        for image in batch:
            result[done] = self._denoise(image, estimate_noise(image) if sigma is None else sigma, report)
            done += 1
        found = result.reshape(images.shape)
        return found.numpy() if isinstance(pixels, np.ndarray) else found

    def _denoise(self, pixels: Tensor, sigma: float, report: Callable[[float], None]) -> Tensor:
        """Denoise `[1 or 3, height, width]`."""
        if sigma < NO_NOISE or pixels.numel() == 0:
            return pixels
        channels, height, width = pixels.shape
        # the gray plane of a color image has larger contrasts, and the same noise
        noise = 255 * sigma / math.sqrt(channels)
        network, trained_for = self.network_for(noise)
        # scaled further, contrasts are stronger than in training
        scale = min(trained_for / (255 * sigma), _MAX_SCALE / math.sqrt(channels))
        opponent = self.opponent.to(pixels) if channels == 3 else pixels.new_ones(1, 1)

        def plane(index: int) -> Tensor:
            return torch.einsum("c,chw->hw", opponent[index], pixels)

        # The first plane is gray. Planes are computed again below, since all three take as much memory as the image.
        steps = [2 if index > 0 and _has_no_detail(plane(index), sigma) else 1 for index in range(channels)]
        tiles = _Tiles(network, self.tile, self.opponent.device)
        total = sum(len(tiles.places(math.ceil(height / step), math.ceil(width / step))) for step in steps)
        done, denoised = 0, []
        for index, step in enumerate(steps):
            part = plane(index) if step == 1 else _halve(plane(index))
            # the mean of four pixels has half the noise; the networks expect values around middle gray
            factor = step * scale
            shift = 0.5 - 0.5 * factor * float(opponent[index].sum())
            denoised.append(torch.empty_like(part))
            for place, tile in tiles.run(part, factor, shift):
                denoised[-1][place] = tile
                done += 1
                report(done / total)
        result = torch.empty_like(pixels)
        for index, step in enumerate(steps):
            result[index] = denoised[index] if step == 1 else _double(denoised[index], height, width)
        for part in result.split(_TILE, dim=1):
            part.copy_(torch.einsum("oc,ohw->chw", opponent, part))
        return _limit_change(result, pixels, sigma)


def _check_pixels(pixels: Tensor) -> None:
    if not isinstance(pixels, Tensor):
        raise InputError(f"pixels must be a torch.Tensor or a NumPy array, got {type(pixels).__name__}")
    if pixels.dim() not in (3, 4) or pixels.shape[-3] not in (1, 3):
        last = pixels.dim() in (3, 4) and pixels.shape[-1] in (1, 3)
        advice = "move its channels, the last axis, before the height" if last else "pass a gray image as pixels[None]"
        raise InputError(
            f"pixels must be [1 or 3, height, width], or a batch of these, got shape {tuple(pixels.shape)}; {advice}"
        )
    if pixels.dtype != torch.float32:
        scale = "" if pixels.is_floating_point() else " / 255"
        raise InputError(f"pixels must be float32 in [0, 1], got {pixels.dtype}; convert them to float32{scale}")
    if not bool(pixels.isfinite().all()):
        raise InputError("pixels must be finite, got NaN or infinity; fill them, such as with torch.nan_to_num")
    if pixels.numel() > 0 and float(pixels.max()) > _MAX_WHITE:
        raise InputError(f"pixels must be in [0, 1], got {float(pixels.max()):.4g}; divide them, such as by 255")


@dataclass(frozen=True)
class _Tiles:
    """Denoise a plane `[height, width]` tile by tile."""

    network: DeepDenoiser
    size: int
    device: torch.device

    def run(self, plane: Tensor, factor: float, shift: float) -> Iterator[tuple[Place, Tensor]]:
        """Scale and shift each tile, denoise it, undo both; yield its place and the result."""
        margin = self._on_grid(min(self.network.reach, _MAX_MARGIN))
        for rows, columns in self.places(*plane.shape):
            top, left = max(0, rows.start - margin), max(0, columns.start - margin)
            tile = plane[top : rows.stop + margin, left : columns.stop + margin] * factor + shift
            filtered = self.network(tile[None, None].to(self.device), origin=(top, left))[0, 0].to(plane.device)
            inside = filtered[rows.start - top : rows.stop - top, columns.start - left : columns.stop - left]
            yield (rows, columns), (inside - shift) / factor

    def places(self, height: int, width: int) -> list[Place]:
        """Return the rows and columns of the tiles."""
        size = self._on_grid(self.size)
        return [
            (slice(top, min(top + size, height)), slice(left, min(left + size, width)))
            for top in range(0, height, size)
            for left in range(0, width, size)
        ]

    def _on_grid(self, pixels: int) -> int:
        """Round up to a multiple of the coarsest grid of the network."""
        step: int = self.network.step
        return math.ceil(pixels / step) * step


def _has_no_detail(plane: Tensor, sigma: float) -> bool:
    """Return whether pixels differ from the mean of their square of 2 x 2 by the noise alone.

    White noise is as strong across, down and along the diagonals, so the weakest of the three is noise where `sigma` is
    underestimated.
    """
    even = _pad(plane)[0]
    left, right = even[:, ::2], even[:, 1::2]
    sums, differences = left + right, left - right
    bands = (sums[::2] - sums[1::2], differences[::2] + differences[1::2], differences[::2] - differences[1::2])
    variances = [float(band.square_().mean()) / 4 for band in bands]
    return sum(variances) / 3 <= _MAX_DETAIL * max(sigma**2, min(variances))


def _pad(plane: Tensor) -> Tensor:
    """Return `[1, height, width]` with an even height and width."""
    height, width = plane.shape
    return F.pad(plane[None], (0, width % 2, 0, height % 2), mode="replicate")


def _halve(plane: Tensor) -> Tensor:
    """Return the means of squares of 2 x 2 pixels."""
    return F.avg_pool2d(_pad(plane), 2)[0]


def _double(plane: Tensor, height: int, width: int) -> Tensor:
    """Interpolate a halved plane at the resolution of the image."""
    return F.interpolate(plane[None, None], scale_factor=2, mode="bicubic")[0, 0, :height, :width]


def _limit_change(denoised: Tensor, pixels: Tensor, sigma: float) -> Tensor:
    """Limit the root mean square change around each pixel to sigma, in place."""
    changes = [
        (after - before).square_().mean(dim=0, keepdim=True)
        for after, before in zip(denoised.split(_TILE, 1), pixels.split(_TILE, 1), strict=True)
    ]
    change = torch.cat(changes, dim=1)
    for window in ((_WINDOW, 1), (1, _WINDOW)):
        margins = window[0] // 2, window[1] // 2
        change = F.avg_pool2d(change, window, 1, margins, count_include_pad=False)
    return denoised.lerp_(pixels, (1 - sigma / change.sqrt_()).clamp_(min=0))


def _opponent_matrix() -> Tensor:
    """Return the orthonormal matrix of `opponent_colors`."""
    return ph.features.opponent_colors(torch.eye(3, dtype=torch.float64, device="cpu")[..., None])[..., 0].float()
