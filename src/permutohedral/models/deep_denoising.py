"""A deep denoiser of spatial and permutohedral convolutions, beyond the paper.

Spatial convolutions see what is near; between them, permutohedral ones exchange values among pixels that lie
near *and* look alike, where "alike" is learned: the features of the lattice are an embedding that the network
computes, and gradients flow into it. Without permutohedral blocks it is a plain residual network: the baseline.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from permutohedral.errors import InputError
from permutohedral.features import color_features, join_features, position_features
from permutohedral.nn import PermutohedralConvolution


class SpatialBlock(nn.Module):
    """x + convolution(relu(convolution(x))), of 3x3 filters.

    >>> SpatialBlock(8)(torch.rand(1, 8, 4, 5)).shape
    torch.Size([1, 8, 4, 5])
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding=1)
        self.second = nn.Conv2d(channels, channels, 3, padding=1)
        # a block starts near the identity, so that any number of them trains without normalization
        nn.init.normal_(self.second.weight, std=0.1 / (9 * channels) ** 0.5)

    def forward(self, hidden: Tensor) -> Tensor:
        """`[batch, channels, height, width]` to the same shape."""
        block: Tensor = hidden + self.second(F.relu(self.first(hidden)))
        return block


class PermutohedralBlock(nn.Module):
    """x + mix(permutohedral convolution(project(x))), over position and a learned embedding of x.

    Args:
        channels: of x.
        lattice_channels: channels that travel over the lattice, each with a filter of its own.
        embedding_dimension: learned dimensions of the features, beside the two of position.
        sigma_space: pixels per lattice step: how far values travel.
        extent: bound of the embedding in lattice steps; it bounds the number of lattice points.

    >>> PermutohedralBlock(8, lattice_channels=4)(torch.rand(1, 8, 6, 5)).shape
    torch.Size([1, 8, 6, 5])
    """

    def __init__(
        self,
        channels: int,
        lattice_channels: int = 16,
        embedding_dimension: int = 2,
        sigma_space: float = 4.0,
        extent: float = 4.0,
    ) -> None:
        super().__init__()
        if embedding_dimension < 1:
            raise InputError(f"embedding_dimension must be at least 1, got {embedding_dimension}")
        self.sigma_space, self.extent = sigma_space, extent
        self.embed = nn.Conv2d(channels, embedding_dimension, 1)
        self.project = nn.Conv2d(channels, lattice_channels, 1)
        self.convolution = PermutohedralConvolution(
            lattice_channels,
            lattice_channels,
            dimension=2 + embedding_dimension,
            neighborhood_size=1,
            groups=lattice_channels,
            bias=False,
            init="gaussian",
            normalization="homogeneous",
        )
        self.mix = nn.Conv2d(lattice_channels, channels, 1)
        nn.init.normal_(self.mix.weight, std=0.1 / lattice_channels**0.5)

    def features(self, hidden: Tensor, origin: tuple[int, int] = (0, 0)) -> Tensor:
        """Position and bounded embedding of every pixel, `[batch, height * width, 2 + embedding_dimension]`."""
        height, width = hidden.shape[-2:]
        shift = torch.tensor(origin, dtype=torch.float32, device=hidden.device)
        position = position_features(height, width, device=hidden.device, dtype=torch.float32) + shift
        embedding = self.extent * torch.tanh(self.embed(hidden).float() / self.extent)
        return join_features(position / self.sigma_space, color_features(embedding))

    def forward(self, hidden: Tensor, origin: tuple[int, int] = (0, 0)) -> Tensor:
        """`[batch, channels, height, width]` to the same shape."""
        values = self.project(hidden).flatten(2).transpose(1, 2)
        filtered = self.convolution(values, self.features(hidden, origin))
        image = filtered.transpose(1, 2).reshape(len(hidden), -1, *hidden.shape[-2:])
        block: Tensor = hidden + self.mix(image.to(hidden.dtype))
        return block


class DeepDenoiser(nn.Module):
    """Predicts the noise with residual blocks, and subtracts it.

    Args:
        channels: of the hidden images.
        blocks: number of spatial blocks.
        permutohedral_blocks: how many of them, evenly spread, a permutohedral block precedes; 0 makes the plain
            spatial network.
        repeats: how often the blocks are applied, with the same weights.
        lattice_channels: as of `PermutohedralBlock`.
        embedding_dimension: as of `PermutohedralBlock`.
        sigma_space: as of `PermutohedralBlock`, of the first one; it doubles from one to the next.

    >>> DeepDenoiser(channels=8, blocks=2, permutohedral_blocks=1)(torch.rand(1, 1, 6, 5)).shape
    torch.Size([1, 1, 6, 5])
    """

    def __init__(
        self,
        channels: int = 32,
        blocks: int = 4,
        permutohedral_blocks: int = 2,
        repeats: int = 1,
        lattice_channels: int = 16,
        embedding_dimension: int = 2,
        sigma_space: float = 2.0,
    ) -> None:
        super().__init__()
        if not 0 <= permutohedral_blocks <= blocks:
            raise InputError(
                f"permutohedral_blocks must lie between 0 and blocks = {blocks}, got {permutohedral_blocks}"
            )
        if repeats < 1:
            raise InputError(f"repeats must be at least 1, got {repeats}")
        self.repeats = repeats
        self.head = nn.Conv2d(1, channels, 3, padding=1)
        body: list[nn.Module] = []
        placed = 0
        for block in range(blocks):
            if placed * blocks < (block + 1) * permutohedral_blocks:
                sigma = sigma_space * 2**placed
                body.append(PermutohedralBlock(channels, lattice_channels, embedding_dimension, sigma))
                placed += 1
            body.append(SpatialBlock(channels))
        self.body = nn.ModuleList(body)
        self.tail = nn.Conv2d(channels, 1, 3, padding=1)

    def forward(self, noisy: Tensor, origin: tuple[int, int] = (0, 0)) -> Tensor:
        """Denoise `noisy [batch, 1, height, width]`, whose first pixel lies at `origin` (y, x)."""
        if noisy.dim() != 4 or noisy.shape[1] != 1:
            raise InputError(f"noisy must be gray images [batch, 1, height, width], got shape {tuple(noisy.shape)}")
        # gray values around zero
        hidden = self.head(noisy - 0.5)
        for _ in range(self.repeats):
            for block in self.body:
                hidden = block(hidden, origin) if isinstance(block, PermutohedralBlock) else block(hidden)
        denoised: Tensor = noisy - self.tail(hidden)
        return denoised


def count_weights(model: nn.Module) -> int:
    """Number of trained numbers.

    >>> count_weights(nn.Linear(2, 3))
    9
    """
    return sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
