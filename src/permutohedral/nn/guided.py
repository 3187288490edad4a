"""Layers along the edges of a guide: learned upsampling, and the bilateral solver."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from permutohedral.errors import InputError
from permutohedral.features import Sigma, positive_numbers, unit_values
from permutohedral.filters.units import warn_of_units
from permutohedral.guided.grids import Grids, Sampling
from permutohedral.guided.joint import LEAST_MASS, joint_features
from permutohedral.guided.maps import check_space, map_layout
from permutohedral.guided.solver import Observe, bilateral_solver
from permutohedral.lattice.tensors import reject_scripting
from permutohedral.nn.convolution import PermutohedralConv
from permutohedral.nn.scale import sigmas_of, wide_exp


class BilateralUpsample2d(nn.Module):
    """Upsample along the edges of a guide with a learned filter (Jampani, Kiefel and Gehler 2016).

    It starts as the Gaussian of `upsample`, without steps. An additional channel of ones is filtered, too, and divides
    the others, so that the weight of each coarse sample is learned.

    Args:
        channels: of the coarse maps, and of the result.
        guide_channels: of the guide; the filter has 2 + guide_channels dimensions, so keep the guide small.
        neighborhood_size: s of the filter; 2 holds the whole Gaussian.
        mix: let the filter mix channels; else each channel has its own filter.
        sigma_space: bandwidth in pixels of the guide; one number, or one for each axis; default: half the distance
            between coarse samples.
        sigma_color: bandwidth in units of the guide's values.
        learn_sigma: train the bandwidths.
        sampling: how the coarse map was made: "area" for cell means, "point" for kept pixels; see `upsample`.
        device: of the parameters.
        dtype: of the parameters.

    Shape:
        coarse `[batch, channels, h, w]`, guide `[batch, guide_channels, height, width]`, or both without batch; the
        result is `[batch, channels, height, width]`.

    >>> import torch, permutohedral as ph
    >>> layer = ph.nn.BilateralUpsample2d(3, 1)
    >>> layer(torch.rand(2, 3, 4, 5), torch.rand(2, 1, 32, 40)).shape
    torch.Size([2, 3, 32, 40])
    """

    __prepare_scriptable__ = reject_scripting

    def __init__(
        self,
        channels: int,
        guide_channels: int,
        *,
        neighborhood_size: int = 1,
        mix: bool = False,
        sigma_space: Sigma | None = None,
        sigma_color: float = 0.1,
        learn_sigma: bool = False,
        sampling: Sampling = "area",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if sigma_space is not None:
            positive_numbers(sigma_space, "sigma_space", 2)
        positive_numbers(sigma_color, "sigma_color", 1)
        self.channels, self.guide_channels = channels, guide_channels
        self.sigma_space, self.sigma_color, self.sampling = sigma_space, sigma_color, sampling
        self.convolution = PermutohedralConv(
            channels + 1,
            channels + 1,
            2 + guide_channels,
            neighborhood_size,
            groups=1 if mix else channels + 1,
            bias=False,
            init="gaussian",
            normalization="none",
            learn_sigma=learn_sigma,
            device=device,
            dtype=dtype,
        )

    def forward(self, coarse: Tensor, guide: Tensor) -> Tensor:
        """Upsample `coarse` to the size of `guide`."""
        guide = unit_values("guide", guide)
        space = check_space(guide, 2)
        map_layout("coarse", coarse, tuple(guide.shape[:-3]), guide.device, 2)
        if coarse.shape[-3] != self.channels or guide.shape[-3] != self.guide_channels or coarse.dim() != guide.dim():
            raise InputError(
                f"coarse must have {self.channels} channels, and guide {self.guide_channels}, both with or without "
                f"batch, got {tuple(coarse.shape)} and {tuple(guide.shape)}"
            )
        warn_of_units(guide, self.sigma_color, 2)
        grids = Grids(tuple(coarse.shape[-2:]), space, self.sampling)
        sigma = [0.5 * ratio for ratio in grids.ratios] if self.sigma_space is None else self.sigma_space
        sources, targets = joint_features(guide, grids, sigma, self.sigma_color)
        values = torch.cat([coarse, torch.ones_like(coarse[..., :1, :, :])], dim=-3).flatten(-2).mT
        filtered: Tensor = self.convolution(values, sources, targets)
        filtered = filtered.mT.reshape(*coarse.shape[:-3], self.channels + 1, *space)
        sums, mass = filtered[..., :-1, :, :], filtered[..., -1:, :, :]
        between = grids.interpolate(coarse)
        # interpolate where the mass is close to zero, or negative
        return (sums + (LEAST_MASS - mass).clamp_min(0) * between) / mass.clamp_min(LEAST_MASS)

    def extra_repr(self) -> str:
        return f"sigma_space={self.sigma_space}, sigma_color={self.sigma_color:.4g}"


class BilateralSolver(nn.Module):
    """Fast bilateral solver as a layer, with learned bandwidths and smoothness.

    Args:
        sigma_space: see `permutohedral.bilateral_solver`.
        sigma_color: bandwidth over the guide as it is, in units of its values; the function compares opponent colors.
        smoothness: see `permutohedral.bilateral_solver`.
        num_iterations: see `permutohedral.bilateral_solver`.
        tolerance: see `permutohedral.bilateral_solver`.
        learn_sigma: train both bandwidths.
        learn_smoothness: train the smoothness.
        device: of the parameters.
        dtype: of the parameters.

    Shape:
        target `[..., channels, height, width]`, guide `[..., guide channels, height, width]`.

    >>> import torch, permutohedral as ph
    >>> layer = ph.nn.BilateralSolver(sigma_space=4.0)
    >>> layer(torch.rand(2, 1, 16, 16), torch.rand(2, 3, 16, 16)).shape
    torch.Size([2, 1, 16, 16])
    """

    __prepare_scriptable__ = reject_scripting

    def __init__(
        self,
        *,
        sigma_space: float = 8.0,
        sigma_color: float = 0.1,
        smoothness: float = 0.3,
        num_iterations: int = 25,
        tolerance: float = 1e-4,
        learn_sigma: bool = False,
        learn_smoothness: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        numbers = {"sigma_space": sigma_space, "sigma_color": sigma_color, "smoothness": smoothness}
        for name, number in numbers.items():
            if not (math.isfinite(number) and number > 0):
                raise InputError(f"{name} must be positive and finite, got {number}")
        self.num_iterations, self.tolerance = num_iterations, tolerance
        # the logarithms are trained, so that the numbers stay positive
        sigmas = torch.tensor([sigma_space, sigma_color], device=device, dtype=dtype)
        self.log_sigma = nn.Parameter(sigmas.log(), requires_grad=learn_sigma)
        strength = torch.tensor(smoothness, device=device, dtype=dtype)
        self.log_smoothness = nn.Parameter(strength.log(), requires_grad=learn_smoothness)

    def forward(
        self, target: Tensor, guide: Tensor, *, sample_weight: Tensor | None = None, observe: Observe = "pixels"
    ) -> Tensor:
        """Smooth `target` along `guide`; see `permutohedral.bilateral_solver`."""
        sigma_space, sigma_color = sigmas_of(self.log_sigma)
        guide = unit_values("guide", guide)
        warn_of_units(guide, sigma_color, 2)
        return bilateral_solver(
            target,
            guide,
            sample_weight=sample_weight,
            smoothness=wide_exp(self.log_smoothness),
            sigma_space=sigma_space,
            sigma_color=sigma_color,
            observe=observe,
            num_iterations=self.num_iterations,
            tolerance=self.tolerance,
        )

    def extra_repr(self) -> str:
        sigma_space, sigma_color = self.log_sigma.detach().exp().tolist()
        smoothness = float(self.log_smoothness.detach().exp())
        return f"sigma_space={sigma_space:.4g}, sigma_color={sigma_color:.4g}, smoothness={smoothness:.4g}"
