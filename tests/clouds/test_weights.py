"""Networks for point clouds as files."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from permutohedral.clouds.scenes import VALUE_CHANNELS
from permutohedral.clouds.weights import STANDARD_CLASSES, Description, PointClass, load_segmenter, save_segmenter
from permutohedral.errors import DataError, InputError
from permutohedral.models.point_segmentation import build_segmenter

DESCRIPTION = Description("pointwise", {"channels": [4]}, STANDARD_CLASSES)


def test_a_network_comes_back_as_it_was(tmp_path: Path) -> None:
    torch.manual_seed(0)
    network = DESCRIPTION.build()
    save_segmenter(network, DESCRIPTION, tmp_path / "network.safetensors")
    again, description = load_segmenter(tmp_path / "network.safetensors")
    assert description == DESCRIPTION
    # whoever may read other new files may read this one
    (tmp_path / "other").touch()
    assert (tmp_path / "network.safetensors").stat().st_mode == (tmp_path / "other").stat().st_mode
    values, positions, item = torch.rand(9, VALUE_CHANNELS), torch.rand(9, 3), torch.zeros(9, dtype=torch.int32)
    assert torch.equal(again(values, positions, item), network(values, positions, item))


def test_the_shipped_network_tells_the_standard_classes_apart() -> None:
    network, description = load_segmenter()
    assert description.classes == STANDARD_CLASSES
    assert description.model == "unet"
    assert not network.training


def test_files_that_do_not_say_how_levels_are_joined_are_of_convolutions(tmp_path: Path) -> None:
    options = {"channels": [4, 8], "step": 0.7}
    network = build_segmenter("unet", VALUE_CHANNELS, 3, {**options, "between": "convolution"})
    save_segmenter(network, Description("unet", options, STANDARD_CLASSES), tmp_path / "old.safetensors")
    again, description = load_segmenter(tmp_path / "old.safetensors")
    assert description.options == {**options, "between": "convolution"}
    assert again.state_dict().keys() == network.state_dict().keys()


def test_other_files_are_refused(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    with pytest.raises(DataError, match="cannot read the network"):
        load_segmenter(tmp_path / "nothing.safetensors")
    (tmp_path / "text.safetensors").write_text("text")
    with pytest.raises(DataError, match="cannot read the network"):
        load_segmenter(tmp_path / "text.safetensors")
    save_file({"weight": torch.zeros(3)}, tmp_path / "other.safetensors")
    with pytest.raises(DataError, match="holds no network for point clouds"):
        load_segmenter(tmp_path / "other.safetensors")
    with pytest.raises(InputError, match="numbers from 0 to 255"):
        PointClass("road", (300,))
