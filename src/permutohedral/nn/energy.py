"""Dense CRF loss: the pairwise energy of soft segmentations, a regularizer for weak labels."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate
from torch.utils.checkpoint import checkpoint

from permutohedral.errors import InputError
from permutohedral.features import colors, join, positions, positive_numbers
from permutohedral.filters.gaussian import gaussian_filter
from permutohedral.filters.normalization import check_separable
from permutohedral.filters.units import warn_of_units
from permutohedral.filters.weighting import check_finite_values
from permutohedral.lattice.lattice import build_lattice
from permutohedral.lattice.memory import check_rows
from permutohedral.lattice.tensors import check_tensor, reject_scripting
from permutohedral.ops.binding import bind
from permutohedral.ops.contract import blur_gain
from permutohedral.ops.tracing import is_traced

# label of pixels without one
_UNLABELED = 255


class DenseEnergyLoss(nn.Module):
    """Dense CRF loss of soft segmentations (Tang et al. 2018): -weight * sum(S * A S) / batch.

    S are the probabilities in the region of interest, and A is the unnormalized bilateral Gaussian of the image: the
    loss is low where similar pixels have the same label. The gradient by S is -2 weight A S / batch, without a
    derivative of A, as in rloss, AFA and ToCo.

    Args:
        sigma_space: standard deviation over positions, in pixels of the image before scaling.
        sigma_color: standard deviation over colors, in units of the image, which is usually 0 to 255.
        weight: factor of the loss.
        scale_factor: by which images and probabilities are scaled first.
        recompute: filter again in the backward pass, instead of keeping A S in memory.

    Shape:
        images `[batch, channels, height, width]`, probabilities `[batch, classes, height, width]`, region and labels
        `[batch, height, width]` or `[batch, 1, height, width]`; the result is one number.

    >>> import torch, permutohedral as ph
    >>> loss = ph.nn.DenseEnergyLoss(sigma_space=100.0, sigma_color=15.0, weight=1e-7, scale_factor=0.5)
    >>> probabilities = torch.rand(2, 21, 32, 32).softmax(dim=1).requires_grad_()
    >>> loss(torch.rand(2, 3, 32, 32) * 255, probabilities).backward()
    >>> probabilities.grad.shape
    torch.Size([2, 21, 32, 32])
    """

    __prepare_scriptable__ = reject_scripting

    def __init__(
        self,
        *,
        sigma_space: float = 100.0,
        sigma_color: float = 15.0,
        weight: float = 1e-7,
        scale_factor: float = 0.5,
        recompute: bool = False,
    ) -> None:
        super().__init__()
        positive_numbers(sigma_space, "sigma_space", 1)
        positive_numbers(sigma_color, "sigma_color", 1)
        positive_numbers(scale_factor, "scale_factor", 1)
        if not isinstance(weight, (int, float)) or not math.isfinite(weight):
            raise InputError(f"weight must be a finite number, got {weight!r}")
        self.sigma_space, self.sigma_color = sigma_space, sigma_color
        self.weight, self.scale_factor, self.recompute = weight, scale_factor, recompute

    def forward(
        self, images: Tensor, probabilities: Tensor, region: Tensor | None = None, labels: Tensor | None = None
    ) -> Tensor:
        """Return the loss.

        Args:
            images: on any device; without gradients.
            probabilities: of the classes, which get gradients.
            region: region of interest, 1 for pixels that count and 0 for padding; default: all pixels.
            labels: of the pixels, 255 where unknown. If given, A S is multiplied by a gate as in ToCo: 1 at unknown
                pixels, region - max(probabilities) elsewhere, and at least 0.
        """
        images, region, labels = self._check(images, probabilities, region, labels)
        if min(images.shape[2:]) * self.scale_factor < 1:
            raise InputError(
                f"images of {images.shape[2]} x {images.shape[3]} pixels have none left after scaling by scale_factor="
                f"{self.scale_factor:g}; make the layer with a larger one"
            )
        warn_of_units(images.detach(), self.sigma_color, 2)
        segments = self._scale(probabilities.to(torch.promote_types(probabilities.dtype, torch.float32)), "bilinear")
        images = self._scale(images.detach().to(segments))
        region = segments.new_ones(()) if region is None else self._scale(region.to(segments))
        gate = None
        if labels is not None:
            largest = segments.detach().amax(dim=1, keepdim=True)
            gate = (region - largest).clamp(min=0).masked_fill(self._scale(labels).long() == _UNLABELED, 1.0)
        arguments = (images, segments * region, gate)
        energy: Tensor = (
            checkpoint(self._energy, *arguments, use_reentrant=False) if self.recompute else self._energy(*arguments)
        )
        return self.weight / len(images) * energy

    def _energy(self, images: Tensor, segments: Tensor, gate: Tensor | None) -> Tensor:
        with torch.no_grad(), torch.autocast(images.device.type, enabled=False):
            filtered = filter_planes(segments, images, self.sigma_space * self.scale_factor, self.sigma_color)
            if gate is not None:
                filtered = filtered * gate
        twice = -2 * (segments * filtered).sum()
        # the value of -S A S, with the gradient -2 A S
        return twice - twice.detach() / 2

    def _scale(self, maps: Tensor, mode: str = "nearest") -> Tensor:
        smooth = {} if mode == "nearest" else {"align_corners": False}
        # labels may be integers, which torch scales as uint8 only
        exact = maps if maps.is_floating_point() else maps.to(torch.float32)
        return interpolate(
            exact, scale_factor=float(self.scale_factor), mode=mode, recompute_scale_factor=True, **smooth
        )

    @staticmethod
    def _check(
        images: Tensor, probabilities: Tensor, region: Tensor | None, labels: Tensor | None
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        for name, given in (("images", images), ("probabilities", probabilities)):
            check_tensor(name, given)
            if given.dim() != 4 or 0 in given.shape or not given.is_floating_point():
                raise InputError(
                    f"{name} must be floating [batch, channels, height, width], got {given.dtype} of shape "
                    f"{tuple(given.shape)}"
                )
        batch, _, *space = probabilities.shape
        if images.shape[0] != batch or list(images.shape[2:]) != space:
            raise InputError(
                "images and probabilities must have the same batch and space, got the shapes "
                f"{tuple(images.shape)} and {tuple(probabilities.shape)}"
            )
        maps: list[Tensor | None] = []
        for name, plane in (("region", region), ("labels", labels)):
            if plane is None:
                maps.append(None)
                continue
            check_tensor(name, plane)
            if list(plane.shape) not in ([batch, *space], [batch, 1, *space]):
                raise InputError(f"{name} must have the shape {(batch, *space)}, got {tuple(plane.shape)}")
            maps.append(plane.to(probabilities.device).reshape(batch, 1, *space))
        return images.to(probabilities.device), maps[0], maps[1]

    def extra_repr(self) -> str:
        options = {name: getattr(self, name) for name in ("sigma_space", "sigma_color", "weight", "scale_factor")}
        return ", ".join(f"{name}={value:g}" for name, value in options.items())


def filter_planes(
    planes: Tensor, images: Tensor, sigma_space: float, sigma_color: float, out: Tensor | None = None
) -> Tensor:
    """Filter `planes [batch, classes, height, width]` with the unnormalized bilateral Gaussian of `images`.

    Features are (x, y, channels), in the order of rloss: the lattice depends on it. Nothing is written to `out` before
    all lattices are built, since that may raise.
    """
    space = images.shape[-2:]
    places = positions(space, sigma_space, device=images.device, dtype=images.dtype).flip(-1)
    if images.device.type == "cpu" and not is_traced():
        return _filter_each(planes, images, places, sigma_color, torch.empty_like(planes) if out is None else out)
    lattice = build_lattice(join(places, colors(images, sigma_color)), neighborhood_size=0, separable=True)
    rows = planes.flatten(2).transpose(1, 2)
    filtered = gaussian_filter(rows, lattice, normalization="none").transpose(1, 2).unflatten(-1, space)
    return filtered if out is None else out.copy_(filtered)


def _filter_each(planes: Tensor, images: Tensor, places: Tensor, sigma_color: float, out: Tensor) -> Tensor:
    """Filter one image at a time, which fits the cache.

    By the core and NumPy: on a busy machine torch's threads would wait for each other.
    """
    check_finite_values(planes)
    lattices = []
    for image in images:
        channels = image.flatten(1).numpy(force=True)
        features = np.empty((len(places), 2 + len(channels)), channels.dtype)
        features[:, :2] = places
        for number, channel in enumerate(channels, 2):
            np.divide(channel, sigma_color, out=features[:, number])
        lattices.append(build_lattice(torch.from_numpy(features), neighborhood_size=0, separable=True))
    for part, lattice, result in zip(planes, lattices, out, strict=True):
        source, ops = lattice.source, bind(part)
        corners = source.vertices, source.barycentric
        check_rows(3 * source.num_lattice_points, len(part), part)
        splatted = ops.splat(part.flatten(1).T, *corners, source.num_lattice_points)
        filtered = ops.slice_planes(ops.blur(splatted, check_separable(lattice), False), *corners)
        np.divide(filtered.view(result.shape).numpy(), blur_gain(lattice.dimension), out=result.numpy())
    return out
