"""A dense conditional random field as a layer, with learned costs and bandwidths."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from permutohedral.crf import Kernel, bilateral_kernel, mean_field, spatial_kernel
from permutohedral.crf.kernels import KernelNormalization
from permutohedral.errors import InputError
from permutohedral.features import check_image, positive_numbers, read_numbers
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
        kernel_weights: cost of different labels, for the spatial and for the bilateral kernel.
        spatial_sigma: standard deviation of the spatial kernel, in pixels.
        bilateral_sigma_space: standard deviation of the bilateral kernel over positions, in pixels.
        bilateral_sigma_color: its standard deviation over colors, in units of the guide's values.
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
        `[batch, channels, *space]`; the result, logarithms of marginals, is like logits.

    >>> import torch, permutohedral as ph
    >>> layer = ph.nn.DenseCRF(num_labels=21, bilateral_sigma_color=0.1)
    >>> layer(torch.randn(2, 21, 32, 40), torch.rand(2, 3, 32, 40)).shape
    torch.Size([2, 21, 32, 40])
    """

    __prepare_scriptable__ = reject_scripting

    def __init__(
        self,
        num_labels: int,
        *,
        kernel_weights: Sequence[float] = (3.0, 10.0),
        spatial_sigma: float = 3.0,
        bilateral_sigma_space: float = 60.0,
        bilateral_sigma_color: float = 0.05,
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
        given = {
            "spatial_sigma": spatial_sigma,
            "bilateral_sigma_space": bilateral_sigma_space,
            "bilateral_sigma_color": bilateral_sigma_color,
        }
        sigmas = [positive_numbers(sigma, name, 1)[0] for name, sigma in given.items()]
        self.num_labels, self.num_iterations, self.spatial_dims = num_labels, num_iterations, spatial_dims
        self.normalization: KernelNormalization = normalization
        self.kernel_weights = nn.Parameter(torch.tensor(numbers, device=device, dtype=dtype), learn_kernel_weights)
        logarithms = torch.tensor([math.log(sigma) for sigma in sigmas], device=device, dtype=dtype)
        # the logarithms are trained, so that a standard deviation stays positive
        self.log_sigma = nn.Parameter(logarithms, learn_sigma)
        costs = {"diagonal": -torch.ones(num_labels), "matrix": 1 - torch.eye(num_labels)}.get(compatibility)
        self.costs = None if costs is None else nn.Parameter(costs.to(self.kernel_weights))

    @breaks_graph
    def forward(self, logits: Tensor, guide: Tensor, lattices: Sequence[Lattice] | None = None) -> Tensor:
        """Refine `logits` along the edges of `guide`.

        Args:
            logits: the scores of a network; energies are their negatives.
            guide: a floating image or volume.
            lattices: from `build_lattices` of the same guide, to share them among calls while sigmas do not change.

        Returns:
            Logarithms of marginals, like logits.
        """
        check_tensor("logits", logits)
        if (
            logits.dim() not in (1 + self.spatial_dims, 2 + self.spatial_dims)
            or self._labels_of(logits) != self.num_labels
        ):
            raise InputError(
                f"logits must be [{self.num_labels}, *space] or a batch of these, with {self.spatial_dims} axes of "
                f"space, got {tuple(logits.shape)}"
            )
        return mean_field(
            -logits, self.kernels(guide), num_iterations=self.num_iterations, lattices=lattices, logarithms=True
        )

    def kernels(self, guide: Tensor) -> list[Kernel]:
        """Return the spatial and the bilateral kernel over the pixels of `guide`."""
        check_image(guide, self.spatial_dims, "guide")
        if guide.dim() > 2 + self.spatial_dims:
            raise InputError(
                f"guide must be [channels, *space] or a batch of these, with {self.spatial_dims} axes of space, got "
                f"{tuple(guide.shape)}"
            )
        sigma_space, sigma_bilateral, sigma_color = sigmas_of(self.log_sigma)
        space = tuple(guide.shape[guide.dim() - self.spatial_dims :])
        dtype = accumulation_dtype(guide.dtype)
        costs = [weight if self.costs is None else weight * self.costs for weight in self.kernel_weights]
        return [
            spatial_kernel(
                space,
                sigma_space,
                compatibility=costs[0],
                normalization=self.normalization,
                device=guide.device,
                dtype=dtype,
            ),
            bilateral_kernel(
                guide,
                sigma_space=sigma_bilateral,
                sigma_color=sigma_color,
                compatibility=costs[1],
                normalization=self.normalization,
                spatial_dims=self.spatial_dims,
            ),
        ]

    def build_lattices(self, guide: Tensor) -> list[Lattice]:
        """Build the lattices of both kernels."""
        return [kernel.build_lattice() for kernel in self.kernels(guide)]

    def _labels_of(self, logits: Tensor) -> int:
        return logits.shape[logits.dim() - self.spatial_dims - 1]

    def extra_repr(self) -> str:
        space, bilateral, colors = self.log_sigma.detach().exp().tolist()
        learned = "" if self.costs is None else f", costs={tuple(self.costs.shape)}"
        return (
            f"{self.num_labels}, spatial_sigma={space:.4g}, bilateral_sigma_space={bilateral:.4g}, "
            f"bilateral_sigma_color={colors:.4g}, num_iterations={self.num_iterations}{learned}"
        )
