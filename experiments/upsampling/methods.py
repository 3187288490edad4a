"""Methods: modes of this library, interpolation, and OpenCV's filters of an interpolated map."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

import permutohedral as ph
from permutohedral.errors import InputError
from permutohedral.guided.grids import Grids
from permutohedral.guided.upsampling import UpsamplingMode
from permutohedral.nn import BilateralUpsample2d

# coarse map [channels, h, w], guide [1 or 3, height, width], factor and settings to [channels, height, width]
Upsample = Callable[[Tensor, Tensor, float, Mapping[str, Any]], Tensor]


class ColorUpsampler(nn.Module):
    """Color a gray image from the colors of few pixels (Jampani, Kiefel and Gehler, 2016).

    The filter runs over position and gray (d = 3), and mixes the colors and the gray of the colored pixels. Without
    training it is the Gaussian.

    Args:
        sigma_space: bandwidth in distances between colored pixels.
        sigma_color: bandwidth in gray; white is 1.
        neighborhood_size: s of the filter.

    Shape:
        coarse `[..., 3, h, w]`, the pixels at floor(i N / n), such as `image[::factor, ::factor]`; gray
        `[..., 1, height, width]`, the mean of red, green and blue. Both may have one batch axis.

    >>> image = torch.rand(3, 16, 24)
    >>> ColorUpsampler()(image[:, ::8, ::8], image.mean(dim=0, keepdim=True)).shape
    torch.Size([3, 16, 24])
    """

    def __init__(self, sigma_space: float = 1.5, sigma_color: float = 0.04, neighborhood_size: int = 2) -> None:
        super().__init__()
        self.sigma_space = sigma_space
        self.filter = BilateralUpsample2d(
            4, 1, neighborhood_size=neighborhood_size, mix=True, sigma_color=sigma_color, sampling="point"
        )

    def forward(self, coarse: Tensor, gray: Tensor) -> Tensor:
        """Return the color image `[..., 3, height, width]`."""
        height, width = gray.shape[-2:]
        grids = Grids((coarse.shape[-2], coarse.shape[-1]), (height, width), "point")
        # the layer takes pixels, and the distance between colored pixels depends on the image
        self.filter.sigma_space = [self.sigma_space * ratio for ratio in grids.ratios]
        mixed: Tensor = self.filter(torch.cat([coarse, grids.observe(gray)], dim=-3), gray)
        return mixed[..., :3, :, :]


def bicubic(coarse: Tensor, guide: Tensor, factor: float, settings: Mapping[str, Any]) -> Tensor:
    """Interpolate without the guide."""
    return functional.interpolate(coarse[None], guide.shape[1:], mode="bicubic", align_corners=False)[0]


def by_mode(mode: UpsamplingMode) -> Upsample:
    """Return `ph.upsample`, with `sigma_space` in distances between coarse samples."""

    def run(coarse: Tensor, guide: Tensor, factor: float, settings: Mapping[str, Any]) -> Tensor:
        options = dict(settings)
        sigma_space, num_iterations = factor * options.pop("sigma_space"), options.pop("steps", None)
        sigma_color = options.pop("sigma_gray")
        if len(guide) == 3:
            guide, sigma_color = ph.features.opponent_colors(guide), [sigma_color, *[options.pop("sigma_color")] * 2]
        found: Tensor = ph.upsample(
            coarse,
            guide,
            mode=mode,
            sigma_space=sigma_space,
            sigma_color=sigma_color,
            num_iterations=num_iterations,
            **options,
        )
        return found

    return run


def by_opencv(name: str) -> Upsample:
    """Return a filter of `cv2.ximgproc` over the interpolated map, with the same units."""

    def run(coarse: Tensor, guide: Tensor, factor: float, settings: Mapping[str, Any]) -> Tensor:
        try:
            import cv2
            import cv2.ximgproc as ximgproc
        except ImportError as error:
            raise InputError(f"method: {name} needs OpenCV; run pip install opencv-contrib-python-headless") from error
        # compared with one thread of ours
        cv2.setNumThreads(1)
        given: Any = bicubic(coarse, guide, factor, {}).movedim(0, -1).contiguous().numpy()
        edges: Any = guide.movedim(0, -1).contiguous().numpy()
        space, color = settings["sigma_space"] * factor, settings["sigma_color"]
        if name == "guidedFilter":
            found = ximgproc.guidedFilter(edges, given, max(1, round(space)), color**2)
        elif name == "jointBilateralFilter":
            found = ximgproc.jointBilateralFilter(edges, given, -1, color, space)
        else:
            # its colors are from 0 to 255, and it takes up to four channels
            edges = (edges * 255).round().astype("uint8")
            parts = [given[..., first : first + 4].copy() for first in range(0, given.shape[-1], 4)]
            parts = [ximgproc.dtFilter(edges, part, space, 255 * color) for part in parts]
            found = np.concatenate([part.reshape(*part.shape[:2], -1) for part in parts], axis=-1)
        filtered = torch.from_numpy(found)
        return filtered.reshape(*filtered.shape[:2], -1).movedim(-1, 0)

    return run


def linear_between_kept(coarse: Tensor, guide: Tensor, factor: float, settings: Mapping[str, Any]) -> Tensor:
    """Interpolate kept pixels without the guide, or their difference to the guide, which is added again."""
    grids = Grids(tuple(coarse.shape[1:]), tuple(guide.shape[1:]), "point")
    if settings.get("differences"):
        return grids.interpolate(coarse - grids.observe(guide)) + guide
    return grids.interpolate(coarse)


def by_filter(coarse: Tensor, guide: Tensor, factor: float, settings: Mapping[str, Any]) -> Tensor:
    """Apply the untrained filter of all taps: the Gaussian."""
    found: Tensor = ColorUpsampler(**settings)(coarse, guide)
    return found


METHODS: dict[str, Upsample] = {
    "bicubic": bicubic,
    "linear": linear_between_kept,
    "filter": by_filter,
    "gaussian": by_mode("gaussian"),
    "affine": by_mode("affine"),
    "solver": by_mode("solver"),
    "guidedFilter": by_opencv("guidedFilter"),
    "jointBilateralFilter": by_opencv("jointBilateralFilter"),
    "dtFilter": by_opencv("dtFilter"),
}
