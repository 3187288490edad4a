"""A dense conditional random field as a layer, with learned costs and bandwidths."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal, cast, overload

import torch
from torch import Tensor, nn

from permutohedral.crf import Kernel, bilateral_kernel, mean_field, spatial_kernel
from permutohedral.crf.kernels import KernelNormalization
from permutohedral.errors import InputError
from permutohedral.features import check_image, positive_numbers, read_numbers, unit_values
from permutohedral.filters.units import warn_of_units
from permutohedral.filters.weighting import check_weights
from permutohedral.lattice.lattice import Lattice
from permutohedral.lattice.tensors import check_count, check_tensor, reject_scripting
from permutohedral.nn.scale import sigmas_of
from permutohedral.ops.contract import accumulation_dtype
from permutohedral.ops.tracing import breaks_graph

Compatibility = Literal["potts", "diagonal", "matrix"]


class DenseCRF(nn.Module):
    """Refine the logits of a network by a mean field over a spatial and a bilateral kernel.

    Nearby pixels of similar color are made to agree. Weights, costs and bandwidths can be trained through all steps.
    The layer starts as the Potts model.

    Args:
        num_labels: number of labels.
        sigma_space: standard deviation of the bilateral kernel over positions, in pixels.
        sigma_color: its standard deviation over colors, in units of the guide's values (see `bilateral_filter`).
        sigma_smoothness: standard deviation of the spatial kernel, in pixels.
        kernel_weights: cost of different labels, for the spatial and for the bilateral kernel.
        compatibility: learned costs: "potts" none, "diagonal" one for each label, "matrix" one for each pair
            of labels.
        num_iterations: mean-field iterations.
        spatial_dims: number of spatial axes: 2 for images, 3 for volumes.
        learn_kernel_weights: train the weights of the kernels.
        learn_sigma: train the standard deviations.
        normalization: see `permutohedral.crf.Kernel`.
        device: of the parameters.
        dtype: of the parameters.

    Shape:
        logits `[labels, *space]` or `[batch, labels, *space]`, guide `[channels, *space]` or
        `[batch, channels, *space]`; the result, logarithms of marginals, is like logits. Images of different sizes are
        lists, without batch axes.

    >>> import torch, permutohedral as ph
    >>> layer = ph.nn.DenseCRF(num_labels=21, sigma_color=0.1)
    >>> layer(torch.randn(2, 21, 32, 40), torch.rand(2, 3, 32, 40)).shape
    torch.Size([2, 21, 32, 40])
    >>> sizes = [(32, 40), (24, 20)]
    >>> refined = layer([torch.randn(21, *size) for size in sizes], [torch.rand(3, *size) for size in sizes])
    >>> [tuple(each.shape) for each in refined]
    [(21, 32, 40), (21, 24, 20)]
    """

    __prepare_scriptable__ = reject_scripting

    def __init__(
        self,
        num_labels: int,
        *,
        sigma_space: float = 60.0,
        sigma_color: float = 0.05,
        sigma_smoothness: float = 3.0,
        kernel_weights: Sequence[float] = (3.0, 10.0),
        compatibility: Compatibility = "potts",
        num_iterations: int = 5,
        spatial_dims: int = 2,
        learn_kernel_weights: bool = True,
        learn_sigma: bool = False,
        normalization: KernelNormalization = "symmetric",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_count("num_labels", num_labels, least=1)
        check_count("num_iterations", num_iterations)
        check_count("spatial_dims", spatial_dims, least=1)
        if compatibility not in ("potts", "diagonal", "matrix"):
            raise InputError(f"compatibility must be 'potts', 'diagonal' or 'matrix', got {compatibility!r}")
        numbers = read_numbers(kernel_weights, "kernel_weights", 2)
        if len(numbers) != 2:
            raise InputError(
                f"kernel_weights must be two numbers, for the spatial and the bilateral kernel, got {kernel_weights!r}"
            )
        # in the order of `log_sigma`
        given = {"sigma_smoothness": sigma_smoothness, "sigma_space": sigma_space, "sigma_color": sigma_color}
        sigmas = [positive_numbers(sigma, name, 1)[0] for name, sigma in given.items()]
        self.num_labels, self.num_iterations, self.spatial_dims = num_labels, num_iterations, spatial_dims
        self.normalization: KernelNormalization = normalization
        self.kernel_weights = nn.Parameter(torch.tensor(numbers, device=device, dtype=dtype), learn_kernel_weights)
        logarithms = torch.tensor([math.log(sigma) for sigma in sigmas], device=device, dtype=dtype)
        # the logarithms are trained, so that a standard deviation stays positive
        self.log_sigma = nn.Parameter(logarithms, learn_sigma)
        costs = {"diagonal": -torch.ones(num_labels), "matrix": 1 - torch.eye(num_labels)}.get(compatibility)
        self.costs = None if costs is None else nn.Parameter(costs.to(self.kernel_weights))

    @overload
    def forward(
        self, logits: Tensor, guide: Tensor | Sequence[Lattice], *, sample_weight: Tensor | None = None
    ) -> Tensor: ...

    @overload
    def forward(
        self, logits: Sequence[Tensor], guide: Sequence[Tensor], *, sample_weight: Sequence[Tensor] | None = None
    ) -> list[Tensor]: ...

    @breaks_graph
    def forward(self, logits: Any, guide: Any, *, sample_weight: Any = None) -> Any:
        """Refine `logits` along the edges of `guide`.

        Args:
            logits: the scores of a network; energies are their negatives. A list for images of different sizes.
            guide: an image or volume, or a list of them. Or the two lattices that `build_lattices` made of it, to share
                them among calls while the standard deviations do not change.
            sample_weight: how much each pixel counts for the others, `[*space]` or with the batch axis, or a list of
                them; zero or False for padding.

        Returns:
            Logarithms of marginals, like logits.
        """
        if not isinstance(logits, Tensor):
            return self._refine_list(logits, guide, sample_weight)
        self._check_logits(logits)
        kernels = self._kernels(guide, tuple(logits.shape[logits.dim() - self.spatial_dims :]))
        if isinstance(guide, Tensor):
            self._check_guide(guide, logits)
        return mean_field(
            -logits, kernels, num_iterations=self.num_iterations, sample_weight=sample_weight, logarithms=True
        )

    def _refine_list(
        self, logits: Sequence[Tensor], guides: Sequence[Tensor], sample_weights: Sequence[Tensor] | None
    ) -> list[Tensor]:
        """Refine images of different sizes as one ragged batch of points."""
        lists = {"guide": guides, "sample_weight": logits if sample_weights is None else sample_weights}
        for name, given in lists.items():
            if isinstance(given, Tensor) or len(given) != len(logits):
                raise InputError(f"{name} must be a list of {len(logits)}, like logits")
        if not logits:
            return []
        for each, picture in zip(logits, guides, strict=True):
            self._check_logits(each)
            self._check_guide(picture, each)
            if not each.dim() == picture.dim() == 1 + self.spatial_dims:
                raise InputError("logits and guide must have no batch axes in a list, whose entries are the items")
        spaces = [each.shape[1:] for each in logits]
        points = [space.numel() for space in spaces]
        batch = torch.arange(len(points)).repeat_interleave(torch.tensor(points)).to(logits[0].device)
        kernels = []
        for each_image in zip(*(self.kernels(picture) for picture in guides), strict=True):
            features = torch.cat([cast(Tensor, kernel.features) for kernel in each_image])
            kernels.append(replace(each_image[0], features=features, space=None, batch=batch))
        weight = None
        if sample_weights is not None:
            data = zip(sample_weights, spaces, logits, strict=True)
            weight = torch.cat([check_weights(each, space, like, len(space)).flatten() for each, space, like in data])
        energies = torch.cat([-each.flatten(1).T for each in logits])
        found = mean_field(energies, kernels, num_iterations=self.num_iterations, sample_weight=weight, logarithms=True)
        return [rows.T.reshape(-1, *space) for rows, space in zip(found.split(points), spaces, strict=True)]

    def kernels(self, guide: Tensor) -> list[Kernel]:
        """Return the spatial and the bilateral kernel over the pixels of `guide`."""
        check_tensor("guide", guide)
        return self._kernels(guide, tuple(guide.shape[guide.dim() - self.spatial_dims :]))

    def _kernels(self, guide: Tensor | Sequence[Lattice], space: tuple[int, ...]) -> list[Kernel]:
        costs = [weight if self.costs is None else weight * self.costs for weight in self.kernel_weights]
        if not isinstance(guide, Tensor):
            if len(guide) != 2 or not all(isinstance(each, Lattice) for each in guide):
                raise InputError("guide must be an image, or the two lattices of build_lattices")
            pairs = zip(guide, costs, strict=True)
            return [Kernel(lattice, cost, self.normalization, space) for lattice, cost in pairs]
        guide = unit_values("guide", guide)
        check_image(guide, self.spatial_dims, "guide")
        if guide.dim() > 2 + self.spatial_dims:
            raise InputError(
                f"guide must be [channels, *space] or a batch of these, with {self.spatial_dims} axes of space, got "
                f"{tuple(guide.shape)}"
            )
        sigma_smoothness, sigma_space, sigma_color = sigmas_of(self.log_sigma)
        warn_of_units(guide, sigma_color, self.spatial_dims)
        return [
            spatial_kernel(
                space,
                sigma_smoothness,
                compatibility=costs[0],
                normalization=self.normalization,
                device=guide.device,
                dtype=accumulation_dtype(guide.dtype),
            ),
            bilateral_kernel(
                guide,
                sigma_space=sigma_space,
                sigma_color=sigma_color,
                compatibility=costs[1],
                normalization=self.normalization,
                spatial_dims=self.spatial_dims,
            ),
        ]

    def build_lattices(self, guide: Tensor) -> list[Lattice]:
        """Build the lattices of both kernels, to pass to `forward` in place of `guide`."""
        return [kernel.build_lattice() for kernel in self.kernels(guide)]

    def _check_logits(self, logits: Tensor) -> None:
        axes = self.spatial_dims
        check_tensor("logits", logits)
        if logits.dim() not in (1 + axes, 2 + axes) or logits.shape[logits.dim() - axes - 1] != self.num_labels:
            raise InputError(
                f"logits must be [{self.num_labels}, *space] or a batch of these, with {axes} axes of space, got "
                f"{tuple(logits.shape)}"
            )

    def _check_guide(self, guide: Tensor, logits: Tensor) -> None:
        """Raise unless the guide has the pixels of the logits."""
        check_tensor("guide", guide)
        axes = self.spatial_dims
        same_space = guide.shape[max(guide.dim() - axes, 0) :] == logits.shape[logits.dim() - axes :]
        batch = guide.shape[: max(guide.dim() - axes - 1, 0)]
        if not same_space or batch not in ((), logits.shape[: logits.dim() - axes - 1]):
            raise InputError(
                f"guide must have the space of the logits, and their batch or none, got {tuple(guide.shape)} and "
                f"logits of {tuple(logits.shape)}"
            )

    def extra_repr(self) -> str:
        smoothness, space, color = self.log_sigma.detach().exp().tolist()
        learned = "" if self.costs is None else f", costs={tuple(self.costs.shape)}"
        return (
            f"{self.num_labels}, sigma_space={space:.4g}, sigma_color={color:.4g}, sigma_smoothness={smoothness:.4g}, "
            f"num_iterations={self.num_iterations}{learned}"
        )
