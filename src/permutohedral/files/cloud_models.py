"""Point-cloud networks as files: weights, architecture and classes."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from torch import nn

from permutohedral.errors import DataError, InputError
from permutohedral.files.atomic import write_bytes
from permutohedral.files.cloud_scenes import VALUE_CHANNELS, Above
from permutohedral.files.settings import reading
from permutohedral.models.point_segmentation import PointSegmenter, shipped_segmenter


@dataclass(frozen=True)
class PointClass:
    """Class of points: its name, and its numbers in the LAS standard, the last of which is written."""

    name: str
    numbers: tuple[int, ...]

    def __post_init__(self) -> None:
        if not self.numbers or not all(0 <= number <= 255 for number in self.numbers):
            raise InputError(f"class {self.name} has numbers {list(self.numbers)}; pass numbers from 0 to 255")


STANDARD_CLASSES = (PointClass("ground", (2,)), PointClass("vegetation", (3, 4, 5)), PointClass("building", (6,)))


@dataclass(frozen=True)
class Description:
    """Options of `PointSegmenter`, classes in the order of its scores, and `above` of `make_scene`."""

    options: dict[str, Any]
    classes: tuple[PointClass, ...]
    above: Above = "ground"

    def build(self) -> nn.Module:
        """Build the network with random weights."""
        return PointSegmenter(VALUE_CHANNELS, len(self.classes), **self.options)


def save_segmenter(network: nn.Module, description: Description, path: Path) -> None:
    """Write a network as safetensors, atomically."""
    from safetensors.torch import save

    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in network.state_dict().items()}
    # safetensors itself would make the file readable for its owner only
    write_bytes(path, save(tensors, metadata={"points": json.dumps(asdict(description))}))


def load_segmenter(path: Path | None = None) -> tuple[nn.Module, Description]:
    """Load a network that `save_segmenter` wrote, by default the one of the package.

    >>> load_segmenter()[1].classes[0].name
    'ground'
    """
    from safetensors import safe_open

    path = shipped_segmenter() if path is None else path
    with reading(f"the model {path}"):
        with safe_open(path, "pt") as file:
            content = json.loads((file.metadata() or {}).get("points", "null"))
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dictionary)
        if content is None:
            raise DataError(f"{path} is not a point-cloud model; create one with `permutohedral cloud train`")
        classes = tuple(PointClass(each["name"], tuple(each["numbers"])) for each in content["classes"])
        description = Description(content["options"], classes, content["above"])
        network = description.build().eval()
        network.load_state_dict(tensors)
        return network, description
