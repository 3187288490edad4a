"""Networks for point clouds as files: weights, with what they are of and which classes they tell apart."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from torch import nn

from permutohedral.clouds.scenes import VALUE_CHANNELS, Above
from permutohedral.errors import DataError, InputError
from permutohedral.models.point_segmentation import build_segmenter
from permutohedral.reporting.atomic import write_bytes


@dataclass(frozen=True)
class PointClass:
    """A class of points.

    Attributes:
        name: such as "vegetation".
        numbers: in the LAS standard, of all that belongs to it; the last is what is written.
    """

    name: str
    numbers: tuple[int, ...]

    def __post_init__(self) -> None:
        if not self.numbers or not all(0 <= number <= 255 for number in self.numbers):
            raise InputError(f"the class {self.name} needs numbers from 0 to 255, got {list(self.numbers)}")


STANDARD_CLASSES = (PointClass("ground", (2,)), PointClass("vegetation", (3, 4, 5)), PointClass("building", (6,)))


@dataclass(frozen=True)
class Description:
    """What the weights in a file are of.

    Attributes:
        model: of `permutohedral.models.point_segmentation.build_segmenter`.
        options: of the model.
        classes: that it tells apart, in the order of its scores.
        above: what the heights that it reads are above; see `make_scene`.
    """

    model: str
    options: dict[str, Any]
    classes: tuple[PointClass, ...]
    above: Above = "ground"

    def build(self) -> nn.Module:
        """The network, without weights."""
        return build_segmenter(self.model, VALUE_CHANNELS, len(self.classes), self.options)


def save_segmenter(network: nn.Module, description: Description, path: Path) -> None:
    """Write a network as safetensors: whole, or not at all.

    Raises:
        StorageError: the file cannot be written.
    """
    from safetensors.torch import save

    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in network.state_dict().items()}
    # what safetensors writes itself, only its owner may read
    write_bytes(path, save(tensors, metadata={"points": json.dumps(asdict(description))}))


def load_segmenter(path: Path | None = None) -> tuple[nn.Module, Description]:
    """A network as `save_segmenter` wrote it, by default the one that comes with the package.

    Raises:
        DataError: the file cannot be read, or is of something else.

    >>> load_segmenter()[1].classes[0].name
    'ground'
    """
    from safetensors import SafetensorError, safe_open

    path = shipped_file() if path is None else path
    try:
        with safe_open(path, "pt") as file:
            content = json.loads((file.metadata() or {})["points"])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (it is no dictionary)
        classes = tuple(PointClass(each["name"], tuple(each["numbers"])) for each in content["classes"])
        options = content["options"]
        if content["model"] == "unet":
            # files that do not say it were written when it was the default
            options = {"between": "convolution", **options}
        description = Description(content["model"], options, classes, content.get("above", "ground"))
        network = description.build()
        network.load_state_dict(tensors)
    except KeyError as error:
        raise DataError(f"{path} holds no network for point clouds; permutohedral train-points writes such") from error
    except (OSError, SafetensorError, ValueError, TypeError, RuntimeError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise DataError(f"cannot read the network {path}: {reason}") from error
    return network.eval(), description


def shipped_file() -> Path:
    """The weights that come with the package: ground, vegetation and building in airborne laser scans."""
    return Path(__file__).resolve().parents[1] / "weights" / "lidar.safetensors"
