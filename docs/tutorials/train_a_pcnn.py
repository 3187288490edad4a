"""
Train a PCNN
============

A small network recognizes shapes from samples at random positions, which no grid convolution takes as they are. Its
first layer is a permutohedral convolution from the samples to a coarse grid; after it, everything is a plain network.
"""

import torch
from figures import draw_filter
from torch import Tensor, nn

import permutohedral as ph

torch.manual_seed(0)

# %%
# Data
# ----
#
# A ring, a cross or a square of random size and place, measured with noise at positions drawn anew for every example.


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
# ``PermutohedralConvolution`` takes values and features, like ``Conv2d`` takes an image. The results are wanted on an 8 by
# 8 grid. With normalization by density (the default) a lattice point holds the mean of the samples around it, so their
# number may change from one example to the next. One lattice step is one feature unit: positions are divided by 1.5,
# which makes a step a pixel and a half.


class PCNN(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = ph.nn.PermutohedralConvolution(1, 8, dimension=2, neighborhood_size=2)
        self.rest = nn.Sequential(
            *(nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 24, 3), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Flatten(), nn.Linear(24 * 9, 3)),
        )
        self.register_buffer("grid", ph.position_features(8, 8) * 2 + 1)

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
# As any network. The lattice is built anew for every batch, since the positions are new; all examples of a batch are
# one call.

optimizer = torch.optim.Adam(network.parameters(), lr=5e-3)
losses = []
for _ in range(180):
    values, position, kind = batch(32, points=200)
    loss = nn.functional.cross_entropy(network(values, position), kind)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
print(f"loss: {sum(losses[:20]) / 20:.2f} over the first 20 steps, {sum(losses[-20:]) / 20:.2f} over the last 20")

# %%
# Fewer samples than in training
# ------------------------------
#
# Nothing in the network knows how many samples there are. It was trained with 200:

network.eval()
with torch.no_grad():
    for points in (400, 200, 100, 50):
        values, position, kind = batch(300, points)
        accuracy = float((network(values, position).argmax(dim=1) == kind).float().mean())
        print(f"{points} samples: {accuracy:.1%} recognized")
        if points == 200:
            assert accuracy > 0.8

# %%
# What it learned
# ---------------
#
# The eight filters of the first layer, 19 taps each, at their places on the lattice:

weight = network.first.weight.detach()
figure = draw_filter({f"filter {number}": weight[:, 0, number] for number in range(8)})

# %%
# The paper's network for digits is trained in the same way: :doc:`digits </research/mnist>`, ``permutohedral reproduce mnist``.
