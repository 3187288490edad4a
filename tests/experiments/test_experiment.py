"""The registry: every experiment has the same options, rows that exist, and results for every seed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import typer
from datasets import data_folder
from typer.testing import CliRunner

from permutohedral.cli.application import application
from permutohedral.experiments.config import shipped_configs
from permutohedral.experiments.experiment import REGISTRY, Entry, file_stem, load_experiment, shorten, with_seeds
from permutohedral.experiments.result import Result, average_seeds, write_result
from permutohedral.experiments.training import TrainingSettings

NAMES = [entry.name for entry in REGISTRY]
OPTIONS = {
    *("--row", "--config", "--seeds", "--jobs", "--report-only", "--resume", "--smoke", "--output", "--data"),
    *("--accelerator", "--devices", "--help"),
}


def options_of(name: str) -> set[str]:
    """The options of an experiment's command, by their longest spelling."""
    group: Any = typer.main.get_command(application)
    command = group.commands["reproduce"].commands[name]
    parameters = command.get_params(command.make_context(name, [], resilient_parsing=True))
    return {max(parameter.opts, key=len) for parameter in parameters}


@pytest.mark.parametrize("entry", REGISTRY, ids=NAMES)
def test_every_experiment_has_the_same_options_and_its_own_flags(entry: Entry) -> None:
    own = {f"--{flag.replace('_', '-')}" for flag in entry.flags}
    assert options_of(entry.name) == OPTIONS | own
    assert entry.load().flags.keys() == entry.flags.keys()


@pytest.mark.parametrize("name", NAMES)
def test_rows_have_configurations_and_smoke_settings(name: str) -> None:
    experiment = load_experiment(name)
    assert experiment.name == name
    assert sorted(experiment.rows + experiment.more_rows) == sorted(shipped_configs(name))
    for config, short in zip(experiment.choose_rows(), experiment.choose_rows(smoke=True), strict=True):
        assert short.name == config.name
        assert (short.training is None) == (config.training is None)
        assert short.training is None or short.training.steps <= min(100, config.training.steps)


@dataclass(frozen=True)
class Row:
    """The settings that every experiment's rows have, and a few more."""

    name: str = "row"
    seed: int = 0
    images: int | None = None
    size: int = 9
    training: TrainingSettings | None = None


def test_a_smoke_run_lowers_and_never_raises() -> None:
    limits = {"images": 4, "size": 16, "training": {"steps": 5, "warmup": 0}}
    assert shorten(Row(), limits) == Row(images=4)
    long = Row(images=2, size=20, training=TrainingSettings(steps=7, batch_size=3, warmup=2))
    assert shorten(long, limits) == Row(images=2, size=16, training=TrainingSettings(steps=5, batch_size=3))


def test_files_of_a_later_seed_have_names_of_their_own() -> None:
    assert [file_stem(config) for config in with_seeds([Row()], 3)] == ["row", "row-1", "row-2"]
    paths = [load_experiment("denoising").result_path(config, Path("out")) for config in with_seeds([Row()], 2)]
    assert paths == [Path("out/row.json"), Path("out/row-1.json")]


def test_what_lies_beside_the_rows_is_no_row(tmp_path: Path) -> None:
    denoising = load_experiment("denoising")
    for name, config in (("scales", {}), ("deep_small", {"name": "deep_small"}), ("cnn", {"name": "cnn"})):
        write_result(Result("denoising", name, config, {}, 0), tmp_path / f"{name}.json")
    assert [result.name for result in denoising.read_results(tmp_path)] == ["cnn", "deep_small"]


def test_the_mean_over_seeds_is_that_of_every_number() -> None:
    first = Result("mri", "a", {}, {"weights": 7, "scores": {"x": {"psnr": 20.0}}}, 0)
    second = replace(first, metrics={"weights": 7, "scores": {"x": {"psnr": 30.0}}}, seed=1)
    alone = replace(first, name="b")
    averaged, untouched = average_seeds([first, alone, second])
    assert averaged.metrics == {"weights": 7, "scores": {"x": {"psnr": 25.0}}}
    assert untouched is alone


def test_denoising_takes_seeds_and_jobs_and_reports_alone(tmp_path: Path) -> None:
    place = ["--data", str(data_folder("bsds500")), "--output", str(tmp_path), "--accelerator", "cpu"]
    rows = ["--row", "noisy", "--row", "cnn", "--seeds", "2", "--jobs", "2", "--smoke"]
    result = CliRunner().invoke(application, ["reproduce", "denoising", *rows, *place])
    assert result.exit_code == 0, result.output
    written = {path.name for path in tmp_path.iterdir()}
    assert written >= {"cnn.json", "cnn-1.json", "cnn.safetensors", "cnn-1.safetensors", "noisy.json", "noisy-1.json"}
    report = (tmp_path / "report.md").read_text()
    assert "mean over 2 seeds" in report
    assert "| CNN, seed 1 | 100 |" in report
    assert result.stdout.count("| CNN |") == 1
    again = CliRunner().invoke(application, ["reproduce", "denoising", "--report-only", *place])
    assert again.stdout == result.stdout
