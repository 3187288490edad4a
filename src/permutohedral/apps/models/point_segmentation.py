"""Network that classifies the points of clouds."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from permutohedral.apps.models.pretrained import open_weights
from permutohedral.errors import DataError, InputError
from permutohedral.nn.unet import Between, LatticeUNet


class PointSegmenter(nn.Module):
    """Apply `LatticeUNet` to positions in meters.

    It takes a ragged batch, `values [points, in_channels]`, `positions [points, 3]` in meters and `batch [points]`, the
    cloud of each point, and returns `[points, classes]`.

    Args:
        in_channels: of the values; 0 is a network of the positions alone, as `permutohedral cloud segment` needs it.
        classes: number of classes, or their numbers in files by name, such as `{"ground": 2, "building": 6}`.
        channels: of each level, the finest first.
        step: of the finest lattice, in meters.
        between: see `LatticeUNet`.

    >>> import torch, permutohedral as ph
    >>> network = ph.apps.PointSegmenter(2, 3, channels=(8, 16))
    >>> network(torch.rand(50, 2), torch.rand(50, 3) * 9, torch.zeros(50, dtype=torch.int64)).shape
    torch.Size([50, 3])
    """

    def __init__(
        self,
        in_channels: int,
        classes: int | Mapping[str, int],
        channels: Sequence[int] = (16, 24, 40, 48),
        step: float = 0.7,
        between: Between = "linear",
    ) -> None:
        super().__init__()
        if isinstance(classes, int) and classes > 256:
            raise InputError(f"classes is {classes}; pass at most 256, since files store a class in 8 bits")
        self.classes = dict(classes) if isinstance(classes, Mapping) else {f"{n}": n for n in range(classes)}
        for name, number in self.classes.items():
            if type(number) is not int or not 0 <= number <= 255:
                raise InputError(f"classes have the number {number!r} for {name!r}; pass numbers from 0 to 255")
        self._options = {"channels": list(channels), "step": step, "between": between}
        self.network = LatticeUNet(in_channels, len(self.classes), step=step, widths=tuple(channels), between=between)

    @property
    def step(self) -> float:
        """Return the step of the finest lattice, in meters."""
        return self.network.step

    @classmethod
    def from_pretrained(cls, path: str | Path | None = None) -> PointSegmenter:
        """Load a network that `save` wrote.

        Args:
            path: default: the shipped network for ground, vegetation and buildings in airborne laser scans. It reads
                positions alone, so its values are `[points, 0]`.

        Raises:
            DataError: the file is missing, damaged, or not such a network.

        >>> import permutohedral as ph
        >>> ph.apps.PointSegmenter.from_pretrained().classes
        {'ground': 2, 'vegetation': 5, 'building': 6}
        """
        path = _shipped_segmenter() if path is None else path
        try:
            with open_weights(path) as file:
                options = json.loads((file.metadata() or {}).get("points", "null"))
                names = list(file.keys())
                if options is None or len(options["channels"]) > len(names):
                    raise DataError(f"{path} is not a point-cloud model; write one with PointSegmenter.save")
                # a small file can claim a network of any size
                with torch.device("meta"):
                    claimed = {name: list(tensor.shape) for name, tensor in cls(**options).state_dict().items()}
                if claimed != {name: file.get_slice(name).get_shape() for name in names}:
                    raise DataError(f"{path} has weights of other shapes than the network it describes")
                network = cls(**options)
                network.load_state_dict({name: file.get_tensor(name) for name in names}, assign=True)
        except (DataError, ModuleNotFoundError):
            raise
        # readers raise any exception for a damaged file
        except Exception as error:
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise DataError(f"cannot read the model {path}: {reason}") from error
        return network.eval()

    def save(self, path: str | Path) -> None:
        """Write the network for `from_pretrained`, and for `--model` of `permutohedral cloud segment`.

        >>> import tempfile, permutohedral as ph
        >>> with tempfile.NamedTemporaryFile(suffix=".safetensors") as file:
        ...     ph.apps.PointSegmenter(0, {"road": 11, "other": 1}, channels=(8,)).save(file.name)
        ...     ph.apps.PointSegmenter.from_pretrained(file.name).classes
        {'road': 11, 'other': 1}
        """
        from safetensors.torch import save

        tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in self.state_dict().items()}
        options: dict[str, Any] = {"in_channels": self.network.in_channels, "classes": self.classes, **self._options}
        # safetensors itself would make the file readable for its owner only
        Path(path).write_bytes(save(tensors, metadata={"points": json.dumps(options)}))

    def forward(self, values: Tensor, positions: Tensor, batch: Tensor) -> Tensor:
        """Return scores `[points, classes]`."""
        scores: Tensor = self.network(values, positions, batch)
        return scores


def _shipped_segmenter() -> Path:
    """Return the path of the shipped weights."""
    return Path(__file__).resolve().parent / "weights" / "lidar.safetensors"
