"""The comparison of two installations sees every bit."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from compare_versions import call, compare_results, difference


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.int32])
def test_one_bit_is_seen(dtype: torch.dtype) -> None:
    tensor = torch.ones(5, dtype=dtype)
    assert difference(tensor, tensor.clone()) is None
    changed = tensor.clone()
    changed.view(torch.uint8)[0] ^= 1
    assert difference(tensor, changed) is not None
    assert difference(tensor, tensor[:4]) is not None
    assert difference(tensor, tensor.to(torch.float32)) is not None


def test_all_results_are_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ones, nan = torch.ones(2), torch.full((1,), float("nan"))
    torch.save({"same": [nan], "other": [ones, ones], "gone": [ones]}, tmp_path / "base")
    torch.save({"same": [nan.clone()], "other": [ones, -ones], "added": [ones]}, tmp_path / "new")
    assert compare_results(tmp_path / "base", tmp_path / "new") == 3
    assert capsys.readouterr().out.splitlines() == [
        "added: only in new",
        "gone: only in base",
        "other: [1] 2.0e+00 of the largest number",
        "4 results compared, 3 differ",
    ]


def test_options_may_be_renamed() -> None:
    def before(*, sigma_range: float) -> float:
        return sigma_range

    def now(*, sigma_color: float) -> float:
        return sigma_color

    assert call(before, sigma_range=2.0) == call(now, sigma_range=2.0) == 2.0
