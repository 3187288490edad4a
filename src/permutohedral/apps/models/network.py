"""Deep denoiser of spatial and permutohedral convolutions, beyond the paper.

Permutohedral blocks exchange values between pixels that are near in position and in a learned embedding of the hidden
values. Without them the network is a plain residual network, the baseline.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import permutohedral as ph
from permutohedral.errors import InputError

Origin = tuple[float, float]


class SpatialBlock(nn.Module):
    """Compute x + convolution(relu(convolution(x))) with 3x3 filters.

    >>> SpatialBlock(8)(torch.rand(1, 8, 4, 5)).shape
    torch.Size([1, 8, 4, 5])
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.second = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        nn.init.normal_(self.first.weight, std=(2 / (9 * channels)) ** 0.5)
        # near the identity, so that many blocks train without normalization
        nn.init.normal_(self.second.weight, std=0.1 / (9 * channels) ** 0.5)

    @property
    def reach(self) -> int:
        """Reach of the result in grid points."""
        return 2

    def forward(self, hidden: Tensor) -> Tensor:
        """Map `[batch, channels, height, width]` to the same shape."""
        # in place: the page faults of new tensors take 5 to 20 % of the time of large images on a CPU
        block: Tensor = self.second(F.relu_(self.first(hidden))).add_(hidden)
        return block


class PermutohedralBlock(nn.Module):
    """Add mixed means over position and a learned embedding of x to x.

    On the lattice, each channel is convolved with its own filter and divided by the Gaussian-filtered number of pixels.
    A linear layer then mixes the channels and that number.

    Args:
        channels: of x.
        lattice_channels: channels on the lattice.
        embedding_dimension: learned dimensions of the features, in addition to the two of position.
        sigma_space: grid points per unit of the features.
        extent: bound of the embedding, which limits the number of lattice points.

    >>> PermutohedralBlock(8, lattice_channels=4)(torch.rand(1, 8, 6, 5)).shape
    torch.Size([1, 8, 6, 5])
    """

    gaussian: Tensor
    fullest: Tensor

    def __init__(
        self,
        channels: int,
        lattice_channels: int = 32,
        embedding_dimension: int = 2,
        sigma_space: float = 4.0,
        extent: float = 6.0,
    ) -> None:
        super().__init__()
        if embedding_dimension < 1:
            raise InputError(f"embedding_dimension must be at least 1, got {embedding_dimension}")
        self.sigma_space, self.extent = sigma_space, extent
        self.rows_per_point: float | None = None
        self.register_buffer("fullest", torch.zeros(1), persistent=False)
        self.embed = nn.Linear(channels, embedding_dimension, bias=False)
        self.project = nn.Linear(channels, lattice_channels, bias=False)
        self.register_buffer("gaussian", ph.lattice.gaussian_weight(2 + embedding_dimension, 1), persistent=False)
        self.weight = nn.Parameter(self.gaussian[:, None, None].repeat(1, 1, lattice_channels))
        self.between = nn.Linear(lattice_channels + 1, lattice_channels)
        self.mix = nn.Linear(lattice_channels, channels, bias=False)
        # hidden values are about as large as gray values; one unit of features separates some of them
        nn.init.normal_(self.embed.weight, std=12 / channels**0.5)
        nn.init.normal_(self.mix.weight, std=0.1 / lattice_channels**0.5)

    def features(self, rows: Tensor, size: tuple[int, int], origin: Origin = (0, 0)) -> Tensor:
        """Return position and bounded embedding of every grid point, float32 `[batch, points, 2 + dimension]`.

        `rows` are hidden values `[batch, height * width, channels]`; `origin` is (y, x) of the first grid point.
        """
        axes = [torch.arange(n, device=rows.device, dtype=torch.float32) + o for n, o in zip(size, origin, strict=True)]
        position = torch.stack(torch.meshgrid(*axes, indexing="ij"), dim=-1).reshape(-1, 2)
        with torch.autocast(rows.device.type, enabled=False):
            embedded = F.linear(rows.float(), self.embed.weight)
        return ph.features.join(position / self.sigma_space, self.extent * torch.tanh(embedded / self.extent))

    def forward(self, hidden: Tensor, origin: Origin = (0, 0)) -> Tensor:
        """Map `[batch, channels, height, width]` to the same shape; `origin` is (y, x) of the first grid point."""
        batch, channels, height, width = hidden.shape
        rows = hidden.permute(0, 2, 3, 1).reshape(batch, height * width, channels)
        lattice = self._build(self.features(rows, (height, width), origin))
        filtered = self.mix(ph.slice(self._exchange(self.project(rows), lattice), lattice))
        # in place, as in SpatialBlock
        block: Tensor = filtered.reshape(batch, height, width, channels).permute(0, 3, 1, 2).add_(hidden)
        return block

    @property
    def reach(self) -> int:
        """Reach of the result in grid points."""
        # x is the second feature, which reaches farther than y
        return math.ceil(ph.lattice.reach(1, neighborhood_size=1) * self.sigma_space)

    def _build(self, features: Tensor) -> ph.Lattice:
        if self.rows_per_point is None or not self.training:
            return ph.build_lattice(features, neighborhood_size=1)
        rows = math.ceil(self.rows_per_point * features.shape[0] * features.shape[1])
        lattice, number = ph.lattice.build_bounded_lattice(features, rows)
        self.fullest.copy_(torch.maximum(self.fullest, number / rows))
        return lattice

    def _exchange(self, values: Tensor, lattice: ph.Lattice) -> Tensor:
        """Map `[batch, points, lattice_channels]` to `[lattice_points, lattice_channels]`."""
        # sums and counts of many pixels do not fit 16 bits
        with torch.autocast(values.device.type, enabled=False):
            ones = values.new_ones((), dtype=torch.float32).expand(*values.shape[:-1], 1)
            weight = torch.cat([self.weight, self.gaussian[:, None, None]], dim=-1)
            convolved = ph.convolve(ph.splat(torch.cat([values.float(), ones], dim=-1), lattice), weight, lattice)
            count = convolved[:, -1:].clamp_min(1e-6)
            described = torch.cat([convolved[:, :-1] / count, count.rsqrt()], dim=-1)
            # lattice values take more memory than pixels
            del convolved
        return F.relu_(self.between(described.to(values.dtype)))


class Level(nn.Module):
    """Run blocks on one grid, before and after the coarser grid of half the height and width.

    Args:
        channels: of this grid, then of each coarser one.
        blocks: spatial blocks of each grid, before and again after the coarser grid; the coarsest has them once.
        permutohedral_blocks: of each grid, the number of later spatial blocks that follow a permutohedral one.
        lattice: `lattice_channels`, `embedding_dimension` and `sigma_space` (in grid points of this grid) of the
            permutohedral blocks.
    """

    def __init__(
        self,
        channels: Sequence[int],
        blocks: Sequence[int],
        permutohedral_blocks: Sequence[int],
        lattice: dict[str, float],
    ) -> None:
        super().__init__()
        self.before = nn.ModuleList()
        self.coarser: Level | None = None
        if len(channels) > 1:
            self.before = nn.ModuleList(SpatialBlock(channels[0]) for _ in range(blocks[0]))
            self.down = nn.Conv2d(channels[0], channels[1], 2, stride=2, bias=False)
            coarser = lattice | {"sigma_space": lattice["sigma_space"] / 2}
            self.coarser = Level(channels[1:], blocks[1:], permutohedral_blocks[1:], coarser)
            self.up = nn.ConvTranspose2d(channels[1], channels[0], 2, stride=2, bias=False)
        after: list[nn.Module] = []
        for block in range(blocks[0]):
            if block < permutohedral_blocks[0]:
                after.append(PermutohedralBlock(channels[0], **lattice))  # type: ignore[arg-type]
            after.append(SpatialBlock(channels[0]))
        self.after = nn.ModuleList(after)

    def forward(self, hidden: Tensor, origin: Origin) -> Tensor:
        """Map `[batch, channels, height, width]` to the same shape; `origin` is (y, x) of the first grid point."""
        for block in self.before:
            hidden = block(hidden)
        if self.coarser is not None:
            half = self.coarser(self.down(hidden), (origin[0] / 2, origin[1] / 2))
            hidden = self.up(half).add_(hidden)
        for block in self.after:
            hidden = block(hidden, origin) if isinstance(block, PermutohedralBlock) else block(hidden)
        return hidden

    @property
    def reach(self) -> int:
        """Reach of the result in grid points."""
        coarser = 0 if self.coarser is None else 2 * self.coarser.reach + 1
        blocks = [*self.before, *self.after]
        return coarser + sum(block.reach for block in blocks if isinstance(block, (PermutohedralBlock, SpatialBlock)))


class DeepDenoiser(nn.Module):
    """Predict the noise with residual blocks on one or several grids, and subtract it.

    Args:
        channels: of each grid, the finest first; each grid has half the height and width of the previous one.
        blocks: spatial blocks of each grid; see `Level`.
        permutohedral_blocks: permutohedral blocks of each grid.
        repeats: number of applications with the same weights.
        lattice_channels: see `PermutohedralBlock`.
        embedding_dimension: see `PermutohedralBlock`.
        sigma_space: pixels per unit of the features.

    >>> DeepDenoiser(channels=[8, 12], blocks=[1, 1], permutohedral_blocks=[1, 0])(torch.rand(1, 1, 7, 5)).shape
    torch.Size([1, 1, 7, 5])
    """

    def __init__(
        self,
        channels: Sequence[int] = (24, 40),
        blocks: Sequence[int] = (1, 1),
        permutohedral_blocks: Sequence[int] = (1, 0),
        repeats: int = 1,
        lattice_channels: int = 32,
        embedding_dimension: int = 2,
        sigma_space: float = 8.0,
    ) -> None:
        super().__init__()
        if not len(channels) == len(blocks) == len(permutohedral_blocks) >= 1:
            raise InputError("channels, blocks and permutohedral_blocks must have one number per grid")
        for most, some in zip(blocks, permutohedral_blocks, strict=True):
            if not 0 <= some <= most:
                raise InputError(f"permutohedral_blocks must lie between 0 and blocks = {most}, got {some}")
        if repeats < 1:
            raise InputError(f"repeats must be at least 1, got {repeats}")
        self.repeats, self.step = repeats, 2 ** (len(channels) - 1)
        self.head = nn.Conv2d(1, channels[0], 3, padding=1)
        lattice = {
            "lattice_channels": lattice_channels,
            "embedding_dimension": embedding_dimension,
            "sigma_space": sigma_space,
        }
        self.body = Level(channels, blocks, permutohedral_blocks, lattice)
        self.tail = nn.Conv2d(channels[0], 1, 3, padding=1, bias=False)

    @property
    def reach(self) -> int:
        """Reach of the result in pixels."""
        return 2 + self.repeats * self.body.reach

    def bound_lattices(self, rows_per_point: float | None) -> None:
        """Limit lattices in training to `rows_per_point` lattice points per grid point; None removes the limit.

        With a limit the host does not wait for the number of lattice points, so that CUDA graphs can be captured.
        """
        for block in self._permutohedral_blocks():
            block.rows_per_point = rows_per_point

    def lattice_fullness(self) -> float:
        """Return the largest ratio of lattice points to the limit; above 1, some shared a row."""
        return max([0.0, *(float(block.fullest) for block in self._permutohedral_blocks())])

    def _permutohedral_blocks(self) -> list[PermutohedralBlock]:
        return [block for block in self.modules() if isinstance(block, PermutohedralBlock)]

    def forward(self, noisy: Tensor, origin: tuple[int, int] = (0, 0)) -> Tensor:
        """Denoise `noisy [batch, 1, height, width]`; `origin` is (y, x) of the first pixel.

        A tile lies on the grids of the whole image if `origin` is a multiple of `step`.
        """
        if noisy.dim() != 4 or noisy.shape[1] != 1:
            raise InputError(f"noisy must be gray images [batch, 1, height, width], got shape {tuple(noisy.shape)}")
        height, width = noisy.shape[-2:]
        # a multiple of the coarsest grid
        padded = F.pad(noisy, (0, -width % self.step, 0, -height % self.step), mode="replicate")
        # gray values around zero
        hidden = self.head(padded - 0.5)
        for _ in range(self.repeats):
            hidden = self.body(hidden, origin)
        denoised: Tensor = noisy - self.tail(hidden)[..., :height, :width]
        return denoised
