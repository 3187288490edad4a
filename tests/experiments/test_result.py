"""Results as files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from permutohedral.errors import InputError
from permutohedral.experiments.result import Result, describe_environment, read_result, write_result, write_text

RESULT = Result("denoising", "row", {"a": [1, 2]}, {"psnr": 1.5}, seed=3, seconds={"training": 2.0}, environment={})


def test_a_result_survives_its_file(tmp_path: Path) -> None:
    path = tmp_path / "new" / "row.json"
    write_result(RESULT, path)
    assert read_result(path) == RESULT
    assert [file.name for file in path.parent.iterdir()] == ["row.json"]


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "row.json"
    write_text(path, "before")
    with pytest.raises(UnicodeEncodeError):
        write_text(path, "after \ud800")
    assert path.read_text() == "before"
    assert len(list(tmp_path.iterdir())) == 1


def test_what_is_no_result_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "row.json"
    path.write_text(json.dumps({"experiment": "denoising"}))
    with pytest.raises(InputError, match="not a result"):
        read_result(path)


def test_the_environment_tells_hardware_and_versions() -> None:
    environment = describe_environment(torch.device("cpu"))
    assert environment["versions"]["torch"] == torch.__version__
    assert environment["hardware"]["device"] == "cpu"
    assert environment["backend"] in ("native", "reference")
    json.dumps(environment)
