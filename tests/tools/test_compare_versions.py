"""The comparison of two source trees sees what differs, and nothing that differs in every run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from compare_versions import compare_outputs, compare_results, same_bits


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.int32])
def test_one_bit_is_seen(dtype: torch.dtype) -> None:
    tensor = torch.ones(5, dtype=dtype)
    assert same_bits(tensor, tensor.clone())
    changed = tensor.clone()
    changed.view(torch.uint8)[0] ^= 1
    assert not same_bits(tensor, changed)
    assert not same_bits(tensor, tensor[:4])
    assert not same_bits(tensor, tensor.to(torch.float32))


def test_nothing_is_left_out(tmp_path: Path) -> None:
    ones, nan = torch.ones(2), torch.full((1,), float("nan"))
    torch.save({"same": [nan], "other": [ones], "shorter": [ones, ones], "gone": [ones]}, tmp_path / "base")
    torch.save({"same": [nan.clone()], "other": [-ones], "shorter": [ones], "added": [ones]}, tmp_path / "new")
    assert dict(compare_results(tmp_path / "base", tmp_path / "new")) == {
        "same": "equal",
        "other": "different",
        "shorter": "different",
        "gone": "only in base",
        "added": "only in new",
    }


def test_commit_time_and_machine_do_not_count(tmp_path: Path) -> None:
    for name, seconds, score in (("base", 1.5, 30.0), ("new", 2.5, 30.0), ("wrong", 1.5, 31.0)):
        (tmp_path / name).mkdir()
        content = {"metrics": {"psnr": score, "seconds": seconds}, "environment": {"commit": name}}
        (tmp_path / name / "row.json").write_text(json.dumps(content))
    assert compare_outputs("x", tmp_path / "base", tmp_path / "new") == [("reproduce x: row.json", "equal")]
    assert compare_outputs("x", tmp_path / "base", tmp_path / "wrong") == [("reproduce x: row.json", "different")]
