"""Warnings about bandwidths and guides in different units."""

from __future__ import annotations

import math
import sys
import warnings

from torch import Tensor

from permutohedral.features import Sigma, in_units_of, numbers_of
from permutohedral.ops.tracing import has_no_subclass, is_traced, requires_gradient

# a filter is useless if neighbors are further apart, in standard deviations, and the image changes by a smaller share
# of their difference; torch.rand(3, 32, 48) changes by 0.026 at sigma_color=0.1
_FAR, _NO_CHANGE = 4.0, 0.01
# in images of at least as many pixels, since the check takes 0.15 ms; about as many pairs of neighbors are looked at
_FEWEST_PIXELS, _PAIRS = 10_000, 1024
# bandwidth over colors, white is 1, beyond which all colors are alike
_LARGEST_SIGMA = 2.0
# callers in these packages are not the user
_LIBRARIES = ("permutohedral", "torch")


def warn_user(message: str) -> None:
    """Warn at the line outside of this package and torch that called."""
    level, frame = 2, sys._getframe(1)
    while frame.f_back and str(frame.f_globals.get("__name__", "")).split(".")[0] in _LIBRARIES:
        frame, level = frame.f_back, level + 1
    warnings.warn(message, stacklevel=level)


def warn_of_large_sigma(sigma_color: Sigma) -> None:
    """Warn about a bandwidth over colors in units of 255, where white is 1."""
    if isinstance(sigma_color, int | float) and _LARGEST_SIGMA < sigma_color < math.inf:
        warn_user(
            f"sigma_color is {sigma_color:g}, but white is 1, so colors hardly matter; pass {sigma_color / 255:.2g} "
            f"for {sigma_color:g} of 255"
        )


def warn_of_four_channels(name: str, channels: int, is_integer: bool) -> None:
    """Warn about integers of four channels, which are RGBA or CMYK."""
    if is_integer and channels == 4:
        warn_user(
            f"{name} has 4 channels of integers, as RGBA and CMYK have, and all four are compared as colors; pass RGB, "
            'such as numpy.asarray(photo.convert("RGB")), or floats to compare all four'
        )


def warn_of_units(
    guide: Tensor, sigma_color: Sigma, spatial_dims: int, filtered: tuple[Tensor, Tensor] | None = None
) -> None:
    """Warn if `sigma_color` does not fit the values of `guide [..., channels, *space]`, as for a photo in [0, 255].

    Only large images on a CPU are looked at, and none that a network made. With `filtered`, the image before and after,
    a warning that sigma is too small needs an image that is unchanged.
    """
    if is_traced() or guide.device.type != "cpu" or not has_no_subclass(guide) or requires_gradient(guide):
        return
    space = guide.shape[-spatial_dims:]
    if math.prod(space) < _FEWEST_PIXELS or 0 in guide.shape:
        return
    side = _PAIRS ** (1 / spatial_dims)
    steps = [slice(None, None, max(1, int(extent / side))) for extent in space]

    def sample(pixels: Tensor) -> Tensor:
        """Return pixels of the first item, `[pixels, channels]`."""
        return pixels.detach()[(0,) * (pixels.dim() - spatial_dims - 1)][(slice(None), *steps)].flatten(1).mT

    left = sample(guide[..., :-1])
    sigma = numbers_of(sigma_color, left.shape[1], "sigma_color")
    if min(sigma) > _LARGEST_SIGMA:
        if float(left.min()) >= 0 and 0 < float(left.max()) <= 1:
            warn_of_large_sigma(min(sigma))
        return
    difference = sample(guide[..., 1:]) - left
    if not in_units_of(difference, sigma).norm(dim=1).median() > _FAR:
        return
    if filtered is not None:
        before, after = (sample(each[..., :-1]) for each in filtered)
        contrast = (sample(filtered[0][..., 1:]) - before).abs().median()
        if not (after - before).abs().median() < _NO_CHANGE * contrast:
            return
    typical, given = float(difference.norm(dim=1).median()), sigma[0] if len(set(sigma)) == 1 else tuple(sigma)
    warn_user(
        f"sigma_color is {given}, but neighboring pixels differ by {typical:.2g}, so hardly any two of them count as "
        "alike, and an image stays almost unchanged; raise sigma_color, which is in units of the values, such as 25 "
        "for values in [0, 255]"
    )
