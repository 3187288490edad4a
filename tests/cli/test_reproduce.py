"""The command that makes the tables anew."""

from __future__ import annotations

from pathlib import Path

import pytest
from datasets import data_folder
from typer.testing import CliRunner

from permutohedral.cli.application import application

RUNNER = CliRunner()


def test_a_smoke_run_prints_the_table_and_leaves_everything_behind(tmp_path: Path) -> None:
    data = data_folder("bsds500")
    arguments = [
        "reproduce",
        "denoising",
        "--smoke",
        "--data",
        str(data),
        "--output",
        str(tmp_path),
        "--accelerator",
        "cpu",
    ]
    result = RUNNER.invoke(application, arguments)
    assert result.exit_code == 0, result.output
    lines = [line for line in result.stdout.splitlines() if line.startswith("|")]
    assert [line.split("|")[3].strip() for line in lines[2:]] == ["20.17", "26.27", "26.51", "26.58", "26.65"]
    written = {path.name for path in tmp_path.iterdir() if path.is_file()}
    rows = {"cnn", "pcnn_gauss", "pcnn_trained", "pcnn_cnn_trained"}
    assert written >= {f"{row}.{ending}" for row in rows for ending in ("json", "safetensors")}
    assert written >= {"noisy.json", "report.md", "psnr.png", "crops.png", "filters.png"}
    again = RUNNER.invoke(application, [*arguments, "--resume"])
    assert again.exit_code == 0
    assert again.stderr.count(": kept") == 5


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["reproduce", "denoising", "--row", "best"], 1, "there is no row 'best'"),
        (["reproduce", "denoising", "--config", "absent.yaml"], 1, "cannot read the configuration"),
        (["reproduce", "denoising", "--data", "absent", "--row", "noisy"], 1, "is missing. Point --data"),
        (["reproduce", "denoising", "--accelerator", "abacus"], 1, "accelerator must be auto, cpu or gpu"),
        (["reproduce", "segmentation"], 2, "denoising"),
    ],
)
def test_mistakes_are_told(arguments: list[str], code: int, message: str, tmp_path: Path) -> None:
    result = RUNNER.invoke(application, arguments)
    assert result.exit_code == code
    assert message in " ".join(result.stderr.split())
