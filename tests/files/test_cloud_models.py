"""Point-cloud networks as files."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from permutohedral.errors import DataError, InputError
from permutohedral.files.cloud_models import STANDARD_CLASSES, Description, PointClass, load_segmenter, save_segmenter
from permutohedral.files.cloud_scenes import VALUE_CHANNELS

DESCRIPTION = Description({"channels": [4]}, STANDARD_CLASSES)


def test_loads_what_was_saved(tmp_path: Path) -> None:
    torch.manual_seed(0)
    network = DESCRIPTION.build()
    save_segmenter(network, DESCRIPTION, tmp_path / "network.safetensors")
    again, description = load_segmenter(tmp_path / "network.safetensors")
    assert description == DESCRIPTION
    # permissions of other new files
    (tmp_path / "other").touch()
    assert (tmp_path / "network.safetensors").stat().st_mode == (tmp_path / "other").stat().st_mode
    values, positions, item = torch.rand(9, VALUE_CHANNELS), torch.rand(9, 3), torch.zeros(9, dtype=torch.int32)
    assert torch.equal(again(values, positions, item), network(values, positions, item))


def test_shipped_network_has_the_standard_classes() -> None:
    network, description = load_segmenter()
    assert description.classes == STANDARD_CLASSES
    assert not network.training


def test_rejects_other_files(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    with pytest.raises(DataError, match="cannot read the model"):
        load_segmenter(tmp_path / "nothing.safetensors")
    (tmp_path / "text.safetensors").write_text("text")
    with pytest.raises(DataError, match="cannot read the model"):
        load_segmenter(tmp_path / "text.safetensors")
    save_file({"weight": torch.zeros(3)}, tmp_path / "other.safetensors")
    with pytest.raises(DataError, match="is not a point-cloud model"):
        load_segmenter(tmp_path / "other.safetensors")
    with pytest.raises(InputError, match="numbers from 0 to 255"):
        PointClass("road", (300,))
