"""`PointSegmenter` as a file: weights, architecture and classes."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path

import pytest
import torch

from permutohedral.apps import PointSegmenter
from permutohedral.errors import DataError, InputError

pytest.importorskip("safetensors", reason="safetensors is not installed")

from safetensors.torch import save_file


def test_loads_what_was_saved(tmp_path: Path) -> None:
    network = PointSegmenter(2, {"low": 2, "high": 5}, channels=(4, 8), step=0.5, between="convolution")
    network.save(tmp_path / "network.safetensors")
    again = PointSegmenter.load(tmp_path / "network.safetensors")
    assert (again.classes, again.step, again.training) == ({"low": 2, "high": 5}, 0.5, False)
    values, positions, item = torch.rand(9, 2), torch.rand(9, 3), torch.zeros(9, dtype=torch.int32)
    assert torch.equal(again(values, positions, item), network(values, positions, item))
    # permissions of other new files
    (tmp_path / "other").touch()
    assert (tmp_path / "network.safetensors").stat().st_mode == (tmp_path / "other").stat().st_mode


def test_rejects_other_files(tmp_path: Path) -> None:
    path = tmp_path / "network.safetensors"
    with pytest.raises(DataError, match="cannot read the network"):
        PointSegmenter.load(path)
    path.write_text("text")
    with pytest.raises(DataError, match="cannot read the network"):
        PointSegmenter.load(path)
    save_file({"weight": torch.zeros(3)}, path)
    with pytest.raises(DataError, match=r"is not a PointSegmenter; write one with PointSegmenter\.save"):
        PointSegmenter.load(path)
    with pytest.raises(InputError, match="pass numbers from 0 to 255"):
        PointSegmenter(0, {"road": 300})


# 480 terabytes of weights, more levels than tensors, more classes than a file can have
@pytest.mark.parametrize(
    "claim",
    [{"channels": [1_000_000, 2_000_000]}, {"channels": [8] * 100_000}, {"classes": 5_000_000}],
    ids=["weights", "levels", "classes"],
)
def test_small_files_cannot_claim_large_networks(claim: dict[str, object], tmp_path: Path) -> None:
    path, options = tmp_path / "network.safetensors", {"in_channels": 0, "classes": {"a": 1}, "channels": [8], **claim}
    tensors = {"weight": torch.zeros(1), "bias": torch.zeros(1)}
    save_file(tensors, path, metadata={"PointSegmenter": json.dumps(options)})
    tracemalloc.start()
    try:
        with pytest.raises(DataError, match=r"not a PointSegmenter|other shapes than the network|at most 256"):
            PointSegmenter.load(path)
        assert tracemalloc.get_traced_memory()[1] < 32 << 20
    finally:
        tracemalloc.stop()


def test_rejects_steps_that_are_no_lengths(tmp_path: Path) -> None:
    for step in (0, -0.5, float("nan")):
        with pytest.raises(InputError, match="step must be a positive number"):
            PointSegmenter(0, 2, step=step)
    options = {"in_channels": 0, "classes": 2, "channels": [8], "step": "far"}
    network = PointSegmenter(0, 2, channels=(8,))
    save_file(network.state_dict(), tmp_path / "a.safetensors", metadata={"PointSegmenter": json.dumps(options)})
    with pytest.raises(DataError, match="cannot read the network"):
        PointSegmenter.load(tmp_path / "a.safetensors")
