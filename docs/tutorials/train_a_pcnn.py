"""
Train a PCNN
============

Train a small network that recognizes shapes from samples at random positions. Its first layer is a permutohedral
convolution from the samples to a coarse grid; the rest is a plain network.
"""

import matplotlib.pyplot as plt
import torch
from torch import Tensor, nn

import permutohedral as ph

torch.manual_seed(0)

# %%
# Data
# ----
#
# A ring, a cross or a square of random size and place, measured with noise at random positions.


def draw(kind: Tensor, position: Tensor) -> Tensor:
    """Values `[batch, points, 1]` of the shapes at positions `[batch, points, 2]` between 0 and 16."""
    count = len(kind)
    center, size = 6.5 + 3 * torch.rand(count, 1, 2), 3.5 + 2 * torch.rand(count, 1)
    away = (position - center).abs()
    round_, square = away.norm(dim=-1), away.amax(dim=-1)
    ring = (round_ - size).abs() < 1
    cross = (away.amin(dim=-1) < 1) & (square < size)
    box = (square - size).abs() < 1
    chosen = torch.stack([ring, cross, box])[kind, torch.arange(count)].float()
    return (chosen + 0.2 * torch.randn(chosen.shape))[..., None]


def batch(count: int, points: int) -> tuple[Tensor, Tensor, Tensor]:
    kind, position = torch.randint(3, (count,)), 16 * torch.rand(count, points, 2)
    return draw(kind, position), position, kind


# %%
# Network
# -------
#
# ``PermutohedralConv`` takes values and features. The results are on an 8 by 8 grid. With normalization by
# density (the default) a lattice point holds the mean of the samples around it, so their number may change. Positions
# are divided by 1.5, so a lattice step is a pixel and a half.


class PCNN(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = ph.nn.PermutohedralConv(1, 8, dimension=2, neighborhood_size=2)
        self.rest = nn.Sequential(
            *(nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 24, 3), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Flatten(), nn.Linear(24 * 9, 3)),
        )
        self.register_buffer("grid", ph.features.positions((8, 8)) * 2 + 1)

    def forward(self, values: Tensor, position: Tensor) -> Tensor:
        targets = self.grid.expand(len(values), -1, -1)
        on_grid: Tensor = self.first(values, position / 1.5, targets / 1.5)
        scores: Tensor = self.rest(on_grid.mT.reshape(len(values), 8, 8, 8))
        return scores


network = PCNN()
print(network.first)
print(sum(parameter.numel() for parameter in network.parameters()), "weights")

# %%
# Training
# --------
#
# The lattice is built for every batch, since the positions are new. All examples of a batch are one call.

optimizer = torch.optim.Adam(network.parameters(), lr=5e-3)
losses = []
for _ in range(180):
    values, position, kind = batch(32, points=200)
    loss = nn.functional.cross_entropy(network(values, position), kind)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
print(
    f"mean loss of 20 steps: first {sum(losses[:20]) / 20:.2f}, last {sum(losses[-20:]) / 20:.2f}"
)

# %%
# Fewer samples than in training
# ------------------------------
#
# The network takes any number of samples. It was trained with 200:

network.eval()
with torch.no_grad():
    for points in (400, 200, 100, 50):
        values, position, kind = batch(300, points)
        accuracy = float((network(values, position).argmax(dim=1) == kind).float().mean())
        print(f"{points} samples: {accuracy:.1%} recognized")
        if points == 200:
            assert accuracy > 0.8

# %%
# Learned filters
# ---------------
#
# The eight filters of the first layer, 19 taps each, at their places on the lattice:

weight = network.first.weight.detach()
# the third coordinate follows: all three sum to zero
first, second = ph.lattice.Neighborhood(2, 2).offsets().float().T
x, y = (first - second) / 2**0.5, (first + second) * 1.5**0.5
_, axes = plt.subplots(2, 4, figsize=(10, 5.4))
for axis, filter_ in zip(axes.flat, weight[:, 0].T, strict=True):
    limit = float(filter_.abs().max())
    axis.scatter(x, y, c=filter_, s=300, marker="h", cmap="RdBu", vmin=-limit, vmax=limit)
    axis.set(aspect="equal", xticks=[], yticks=[])
    axis.margins(0.2)

# %%
# The paper's network for digits is trained in the same way: :doc:`digits </research/mnist>`.
