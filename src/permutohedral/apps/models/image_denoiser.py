"""Denoising of gray or color images of any size and noise level, in bounded memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from permutohedral.apps.models.deep_denoising import DeepDenoiser
from permutohedral.apps.models.denoising import CombinedDenoiser, PermutohedralDenoiser, SpatialDenoiser
from permutohedral.apps.models.noise_level import estimate_noise
from permutohedral.apps.models.pretrained import DEFAULT_MODEL, choose_model, load_pretrained
from permutohedral.errors import InputError
from permutohedral.features import opponent_colors
from permutohedral.lattice.tensors import check_tensor

# rounding to 8 bits causes 0.29 / 255
NO_NOISE = 0.5 / 255
# images with a large range may exceed 1
_MAX_WHITE = 16.0
# feature units: 2.45 for a filter of size 2, and 1.23 for a simplex at either end
_REACH = 5.0
# larger tiles allocate tensors that the C library returns to the system, and their page faults take as long as margins
_TILE = 416
# on photos with noise of 25 the shipped network reaches farther by at most 0.5 of 255, and 0.0003 dB
_MAX_MARGIN = 48
# largest variance within squares of 2 x 2 pixels of a plane of half the resolution, relative to that of noise
_MAX_DETAIL = 1.05
# side of the square around a pixel whose mean change is limited
_WINDOW = 15

# rows and columns
Place = tuple[slice, slice]


@dataclass(frozen=True)
class Denoiser:
    """Denoise images with a shipped model.

    The image is scaled so that its noise has the strength that the model was trained for. Color is denoised in
    opponent colors, which have independent noise of the same strength. A color difference without detail beyond the
    noise is denoised at half the resolution, which takes less time and leaves less error. Tiles overlap by the reach of
    the model, at most 48 pixels, so the result is that of the whole image but for less than a level of 8 bits. The root
    mean square change around each pixel is limited to the strength of the noise, so that strong patterns survive that
    the model does not know.

    Attributes:
        model: "auto" or one of `shipped_models()`; see `choose_model`.
        tile: height and width of a tile; default 416.
        device: torch device of the model; images may be on any device.

    >>> import torch, permutohedral as ph
    >>> denoise = ph.apps.Denoiser.from_pretrained()
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
            float32 of the same shape and device, not clipped.
        """
        check_tensor("pixels", pixels)
        if pixels.dim() != 3 or pixels.shape[0] not in (1, 3):
            last = pixels.dim() == 3 and pixels.shape[2] in (1, 3)
            advice = "pass pixels.movedim(-1, 0)" if last else "pass a gray image as pixels[None]"
            raise InputError(f"pixels must be [1 or 3, height, width], got shape {tuple(pixels.shape)}; {advice}")
        if pixels.dtype != torch.float32:
            scale = "" if pixels.is_floating_point() else " / 255"
            raise InputError(f"pixels must be float32 in [0, 1], got {pixels.dtype}; pass pixels.float(){scale}")
        if not bool(pixels.isfinite().all()):
            raise InputError("pixels must be finite, got NaN or infinity; fill them, such as with torch.nan_to_num")
        if pixels.numel() > 0 and float(pixels.max()) > _MAX_WHITE:
            raise InputError(f"pixels must be in [0, 1], got {float(pixels.max()):.4g}; divide them, such as by 255")
        sigma = estimate_noise(pixels) if sigma is None else sigma
        if not 0 <= sigma <= 1:
            raise InputError(
                f"sigma must be at least 0 and at most 1, since white is 1, got {sigma:g}; divide sigma by 255"
            )
        if sigma < NO_NOISE or pixels.numel() == 0:
            return pixels.clone()
        name = self.choose(pixels.shape[0], sigma)
        # contrasts beyond those in training harm deep networks only
        level = _gray_noise(pixels.shape[0], sigma) if name.startswith("deep") else 255 * sigma
        model, trained_for = load_pretrained(name, level)
        # 24 channels of 512 x 512 are convolved in half the time on a CPU; torch's types do not know the argument
        model = model.to(self.device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        opponent = (
            _opponent_matrix() if pixels.shape[0] == 3 else torch.ones(1, 1, dtype=torch.float32, device="cpu")
        ).to(pixels.device)
        height, width = pixels.shape[1:]

        def plane(index: int) -> Tensor:
            return torch.einsum("c,chw->hw", opponent[index], pixels)

        # The first plane is gray; small networks take too little time to halve the others. Planes are computed again
        # below, since all three take as much memory as the image.
        is_deep, indices = name.startswith("deep"), range(len(opponent))
        steps = [2 if is_deep and index > 0 and _has_no_detail(plane(index), sigma) else 1 for index in indices]
        tiles = _Tiles(model, self.tile or _TILE, self.device)
        total = sum(len(tiles.places(math.ceil(height / step), math.ceil(width / step))) for step in steps)
        done, denoised = 0, []
        for index, step in enumerate(steps):
            part = plane(index) if step == 1 else _halve(plane(index))
            # the mean of four pixels has half the noise
            factor = step * trained_for / (255 * sigma)
            # deep networks expect values around middle gray
            shift = 0.5 - 0.5 * factor * float(opponent[index].sum()) if is_deep else 0.0
            denoised.append(torch.empty_like(part))
            for place, tile in tiles.run(part, factor, shift):
                denoised[-1][place] = tile
                done += 1
                if progress is not None:
                    progress(done / total)
        result = torch.empty_like(pixels)
        for index, step in enumerate(steps):
            result[index] = denoised[index] if step == 1 else _double(denoised[index], height, width)
        for part in result.split(_TILE, dim=1):
            part.copy_(torch.einsum("oc,ohw->chw", opponent, part))
        return _limit_change(result, pixels, sigma)


@dataclass(frozen=True)
class _Tiles:
    """Denoise a plane `[height, width]` tile by tile."""

    model: torch.nn.Module
    size: int
    device: str

    def run(self, plane: Tensor, factor: float, shift: float) -> Iterator[tuple[Place, Tensor]]:
        """Scale and shift each tile, denoise it, undo both; yield its place and the result."""
        margin = self._on_grid(_margin(self.model))
        for rows, columns in self.places(*plane.shape):
            top, left = max(0, rows.start - margin), max(0, columns.start - margin)
            tile = plane[top : rows.stop + margin, left : columns.stop + margin] * factor + shift
            filtered = self.model(tile[None, None].to(self.device), origin=(top, left))[0, 0].to(plane.device)
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
        """Round up to a multiple of the coarsest grid of the model."""
        step = self.model.step if isinstance(self.model, DeepDenoiser) else 1
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


def _gray_noise(channels: int, sigma: float) -> float:
    """Return the noise of 255 in a gray image of the same ratio of contrast to noise.

    The gray plane of a color image has larger contrasts, and the same noise.
    """
    return 255 * sigma / math.sqrt(channels)


def _opponent_matrix() -> Tensor:
    """Return the orthonormal matrix of `opponent_colors`."""
    return opponent_colors(torch.eye(3, dtype=torch.float64, device="cpu")[..., None])[..., 0].float()


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
