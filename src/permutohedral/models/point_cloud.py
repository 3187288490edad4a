"""Classifiers of point clouds: permutohedral convolutions with pooling, and a network of single points to compare with.

Both take a ragged batch, `positions [points, 3]`, `normals [points, 3]` and `item [points]`, the cloud of each point,
and return `[clouds, classes]`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from permutohedral.errors import InputError
from permutohedral.lattice import build_lattice
from permutohedral.nn.convolution import PermutohedralConvolution
from permutohedral.ops.primitives import accumulation_dtype

PointModel = Literal["permutohedral", "pointwise"]
PointFeatures = Literal["position", "position_normal"]


def pool_points(values: Tensor, features: Tensor, item: Tensor, step: float) -> tuple[Tensor, Tensor, Tensor]:
    """Join the points that are nearest to the same point of a coarser lattice, within each item.

    Args:
        values: `[points, channels]`; the largest of each channel is kept.
        features: `[points, d]`; their mean is kept.
        item: int64 `[points]`, the item of each point.
        step: of the coarser lattice, in units of the features.

    Returns:
        The values, features and items of fewer points.

    >>> values, features = torch.tensor([[1.0], [3.0], [2.0]]), torch.tensor([[0.0], [0.1], [9.0]])
    >>> [part.flatten().tolist() for part in pool_points(values, features, torch.zeros(3, dtype=torch.int64), 1.0)]
    [[3.0, 2.0], [0.05000000074505806, 9.0], [0, 0]]
    """
    with torch.no_grad():
        simplices = build_lattice(features / step, neighborhood_size=0, batch=item).source
        corner = simplices.barycentric.argmax(dim=1, keepdim=True)
        nearest = simplices.vertices.long().gather(1, corner)[:, 0]
        _, group = torch.unique(nearest, return_inverse=True)
        groups = int(group.max()) + 1 if len(group) else 0
        members = torch.bincount(group, minlength=groups)
        pooled_item = item.new_zeros(groups).scatter(0, group, item)
    mean = features.new_zeros(groups, features.shape[1]).index_add(0, group, features) / members[:, None]
    return _largest(values, group, groups), mean, pooled_item


def _largest(values: Tensor, group: Tensor, groups: int) -> Tensor:
    """The largest of each channel in each group, `[groups, channels]`; every group has a member."""
    empty = values.new_zeros(groups, values.shape[1])
    return empty.scatter_reduce(0, group[:, None].expand_as(values), values, "amax", include_self=False)


def summarize(values: Tensor, item: Tensor, items: int) -> Tensor:
    """Largest and mean of each channel over the points of each item, `[items, 2 channels]`."""
    points = torch.bincount(item, minlength=items).clamp_min(1)
    wide = values.to(accumulation_dtype(values.dtype))
    mean = wide.new_zeros(items, values.shape[1]).index_add(0, item, wide) / points[:, None]
    return torch.cat([_largest(values, item, items), mean.to(values.dtype)], dim=1)


class PermutohedralClassifier(nn.Module):
    """Permutohedral convolutions on coarser and coarser lattices; the points are pooled in between.

    A lattice is built once for the whole ragged batch and level. The first one has the given steps; each following one
    has steps twice as long. What every level found in a cloud, the largest and the mean of each channel, is judged.

    Args:
        classes: number of them.
        features: "position", 3 dimensions; or "position_normal", 6, where points are neighbors if they are near and
            face the same way.
        values: "position" or "position_normal": what the points carry; by default as the features.
        channels: of the layer for single points, and of the convolutions.
        hidden: of the layer behind the pooling.
        steps: of the first lattice, in positions (the radius of a cloud is 1) and in normals.
        dropout: before the last layer.

    >>> model = PermutohedralClassifier(classes=8, channels=(4, 4, 4), hidden=4)
    >>> item = torch.tensor([0] * 30 + [1] * 20)
    >>> model(torch.rand(50, 3), torch.rand(50, 3), item).shape
    torch.Size([2, 8])
    """

    def __init__(
        self,
        classes: int,
        features: PointFeatures = "position",
        values: PointFeatures | None = None,
        channels: Sequence[int] = (24, 24, 40, 56),
        hidden: int = 64,
        steps: Sequence[float] = (0.15, 0.7),
        dropout: float = 0.2,
    ) -> None:
        super().__init__()
        _check(features, channels)
        _check(values or features, channels)
        self.normals_in_features = features == "position_normal"
        self.normals_in_values = (values or features) == "position_normal"
        self.steps, self.dropout = tuple(steps), dropout
        self.embed = nn.Linear(7 if self.normals_in_values else 4, channels[0])
        dimension = 6 if self.normals_in_features else 3
        layers = pairwise(channels)
        self.convolutions = nn.ModuleList(PermutohedralConvolution(i, o, dimension) for i, o in layers)
        self.norms = nn.ModuleList(nn.BatchNorm1d(number) for number in channels)
        self.hidden = nn.Linear(2 * sum(channels[1:]), hidden)
        self.norm = nn.BatchNorm1d(hidden)
        self.head = nn.Linear(hidden, classes)

    def forward(self, positions: Tensor, normals: Tensor, item: Tensor) -> Tensor:
        """Scores `[clouds, classes]`."""
        features = positions / self.steps[0]
        if self.normals_in_features:
            features = torch.cat([features, normals / self.steps[1]], dim=1)
        values = torch.cat([torch.ones_like(positions[:, :1]), positions], dim=1)
        if self.normals_in_values:
            values = torch.cat([values, normals], dim=1)
        values = F.relu(self.norms[0](self.embed(values)))
        clouds, found = int(item.max()) + 1, []
        for level, convolution in enumerate(self.convolutions):
            if level:
                values, features, item = pool_points(values, features, item, step=1.0)
                features = features / 2
            values = F.relu(self.norms[level + 1](convolution(values, features, batch=item)))
            found.append(summarize(values, item, clouds))
        judged = F.relu(self.norm(self.hidden(torch.cat(found, dim=1))))
        scores: Tensor = self.head(F.dropout(judged, self.dropout, self.training))
        return scores


class PointwiseClassifier(nn.Module):
    """The same small network for every point, then the largest and the mean over each cloud: the idea of PointNet.

    Args:
        classes: number of them.
        features: "position" or "position_normal": what the network sees of each point.
        channels: of the layers for a point.
        hidden: of the layer behind the pooling.
        dropout: before the last layer.

    >>> model = PointwiseClassifier(classes=8, channels=(4, 4), hidden=4)
    >>> model(torch.rand(50, 3), torch.rand(50, 3), torch.tensor([0] * 30 + [1] * 20)).shape
    torch.Size([2, 8])
    """

    def __init__(
        self,
        classes: int,
        features: PointFeatures = "position",
        channels: Sequence[int] = (64, 128, 256),
        hidden: int = 64,
        dropout: float = 0.2,
    ) -> None:
        super().__init__()
        _check(features, channels)
        self.with_normals, self.dropout = features == "position_normal", dropout
        layers = zip([6 if self.with_normals else 3, *channels[:-1]], channels, strict=True)
        self.linears = nn.ModuleList(nn.Linear(i, o) for i, o in layers)
        self.norms = nn.ModuleList(nn.BatchNorm1d(number) for number in channels)
        self.hidden = nn.Linear(2 * channels[-1], hidden)
        self.norm = nn.BatchNorm1d(hidden)
        self.head = nn.Linear(hidden, classes)

    def forward(self, positions: Tensor, normals: Tensor, item: Tensor) -> Tensor:
        """Scores `[clouds, classes]`."""
        values = torch.cat([positions, normals], dim=1) if self.with_normals else positions
        for linear, norm in zip(self.linears, self.norms, strict=True):
            values = F.relu(norm(linear(values)))
        pooled = F.relu(self.norm(self.hidden(summarize(values, item, int(item.max()) + 1))))
        scores: Tensor = self.head(F.dropout(pooled, self.dropout, self.training))
        return scores


def _check(features: str, channels: Sequence[int]) -> None:
    if features not in ("position", "position_normal"):
        raise InputError(f"features must be 'position' or 'position_normal', got {features!r}")
    if not channels or min(channels) < 1:
        raise InputError(f"channels must give a positive number for each layer, got {list(channels)}")


def build_classifier(model: PointModel, classes: int, options: Mapping[str, Any]) -> nn.Module:
    """A classifier by name.

    >>> build_classifier("pointwise", 8, {"hidden": 4}).head.in_features
    4
    """
    kind = PermutohedralClassifier if model == "permutohedral" else PointwiseClassifier
    try:
        return kind(classes, **options)
    except TypeError as error:
        raise InputError(f"the options of the model {model} do not fit: {error}") from error
