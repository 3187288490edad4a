"""All experiments of the registry: rows, smoke runs, resuming, reports, errors."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from experiments import training
from experiments.__main__ import main
from experiments.data.sample import SAMPLE
from experiments.experiment import Experiment, is_result_of, run_row, shorten, with_seeds
from experiments.registry import REGISTRY, load_experiment
from experiments.results import parse_config, read_weights, write_table
from experiments.training import RunOptions, TrainingSettings
from permutohedral.errors import InputError, PermutohedralError

RESULTS = Path(__file__).resolve().parents[2] / "results"


# made before results had to come from a clean commit
OLD = ("grabcut", "lidar", "upsampling")
# some rows have not been run yet
UNFINISHED = ("denoising",)


def quick(name: str) -> list[str]:
    """Return the quick rows of an experiment."""
    rows: list[str] = load_experiment(name).read_rows()["quick"]["rows"]
    return rows


def silent(line: str) -> None:
    """Drop a line of the log."""


@pytest.mark.parametrize("name", REGISTRY)
def test_every_row_parses_and_can_be_shortened(name: str) -> None:
    experiment = load_experiment(name)
    content = experiment.read_rows()
    names = [*content["rows"], *content.get("more_rows", {})]
    configs = experiment.choose_rows(names)
    assert [config.name for config in configs] == names
    assert [config.name for config in experiment.choose_rows()] == list(content["rows"])
    for config, short in zip(configs, experiment.choose_rows(names, smoke=True), strict=True):
        limits = content["smoke"].get("training", {})
        assert config.training is None or short.training.steps <= limits["steps"]


def check_published(name: str, folder: Path) -> None:
    """Fail where the rows, the CSV, the settings and the page in `folder` disagree."""
    experiment = load_experiment(name)
    results = experiment.read_results(folder)
    for result in results:
        dirty = "+" in result.environment["commit"] or result.environment["commit"].startswith("v")
        assert not dirty or name in OLD, f"{result.key} comes from changed sources"
        if result.split == "test":
            [today] = experiment.choose_rows([result.name])
            assert is_result_of(result, replace(today, seed=result.seed)), f"{result.key} has other settings than today"
    tested = {result.name for result in results if result.split == "test"}
    if name not in UNFINISHED:
        assert tested >= set(experiment.read_rows()["rows"]), "rows without results"
    # reading and writing changes nothing, and the page is made from these two files
    before = {path.name: path.read_bytes() for path in folder.glob(f"{name}.*")}
    write_table(folder / f"{name}.csv", results)
    assert main([name, "--report-only", "--output", str(folder)]) == 0
    assert {path.name: path.read_bytes() for path in folder.glob(f"{name}.*")} == before


@pytest.fixture
def published(tmp_path: Path) -> Path:
    for path in RESULTS.glob("*"):
        if path.stem in REGISTRY:
            shutil.copy(path, tmp_path)
    return tmp_path


@pytest.mark.parametrize("name", [name for name in REGISTRY if (RESULTS / f"{name}.csv").exists()])
def test_published_rows_settings_and_pages_agree(name: str, published: Path) -> None:
    check_published(name, published)


@pytest.mark.parametrize(
    ("kind", "old", "new"),
    [
        ("csv", "0.9934,", "0.9935,"),
        ("csv", "0.9934,", "0.99340,"),
        ("yaml", "learning_rate: 0.002", "learning_rate: 0.003"),
        ("yaml", "levels: 6", "levels: 6\n  window: 1"),
        ("md", "0.9933", "0.9934"),
        ("md", "H200", "H100"),
    ],
)
def test_a_change_of_results_settings_or_page_is_noticed(kind: str, old: str, new: str, published: Path) -> None:
    path = published / f"rotation.{kind}"
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))
    with pytest.raises(AssertionError):
        check_published("rotation", published)


def test_a_change_of_a_row_is_noticed(published: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = load_experiment("rotation").read_rows()
    content["rows"]["lenet"]["training"] |= {"warmup": 1}
    monkeypatch.setattr(Experiment, "read_rows", lambda self: content)
    with pytest.raises(AssertionError, match="has other settings than today"):
        check_published("rotation", published)


def test_results_of_experiments_have_one_form() -> None:
    assert not [path for path in RESULTS.iterdir() if path.is_dir()]
    assert {path.suffix for path in RESULTS.iterdir() if path.stem in REGISTRY} == {".csv", ".yaml", ".md"}


@pytest.mark.slow
@pytest.mark.parametrize("name", REGISTRY)
def test_a_smoke_run_leaves_results_and_a_report(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = quick(name)
    chosen = [word for row in rows for word in ("--row", row)]
    place = ["--output", str(tmp_path), "--device", "cpu"]
    assert main([name, "--smoke", *chosen, *place]) == 0
    printed = capsys.readouterr()
    titles = [config.title for config in load_experiment(name).choose_rows(rows)]
    assert all(title in printed.out for title in titles)
    results = load_experiment(name).read_results(tmp_path)
    assert sorted((result.name, result.seed) for result in results) == sorted((row, 0) for row in rows)
    assert "(smoke run)" in (tmp_path / f"{name}.md").read_text()
    assert "**Smoke run**" in printed.out
    assert not list(tmp_path.rglob("*.partial*"))
    assert main([name, "--smoke", "--resume", *chosen, *place]) == 0
    assert capsys.readouterr().err.count(": kept") == len(rows)
    assert main([name, "--report-only", *place]) == 0


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in REGISTRY if name not in ("features", "grids")])
def test_an_interrupted_training_ends_like_an_uninterrupted_one(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = quick(name)
    experiment = load_experiment(name)
    [config] = experiment.choose_rows(rows[-1:], smoke=True)
    config = replace(config, training=replace(config.training, steps=4))
    straight = RunOptions(tmp_path / "straight", SAMPLE, "cpu")
    killed = replace(straight, output=tmp_path / "killed", resume=True)
    expected = run_row(experiment, config, straight)
    write, written = training._write_checkpoint, []

    def interrupt(content: dict[str, Any], path: Path) -> None:
        write(content, path)
        written.append(path)
        if len(written) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(training, "_write_checkpoint", interrupt)
    with pytest.raises(KeyboardInterrupt):
        run_row(experiment, config, killed)
    resumed = run_row(experiment, config, killed)
    assert _without_times(resumed.metrics) == _without_times(expected.metrics)
    paths = sorted((tmp_path / "straight" / "weights").iterdir())
    assert paths
    for path in paths:
        one, other = read_weights(path), read_weights(tmp_path / "killed" / "weights" / path.name)
        assert all((one[key] == other[key]).all() for key in one)


def _without_times(content: Any) -> Any:
    if isinstance(content, dict):
        return {key: _without_times(value) for key, value in content.items() if not key.endswith("seconds")}
    return content


@pytest.mark.process
def test_rows_in_parallel_give_the_same_results(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = ["--smoke", "--device", "cpu", "--row", "noisy", "--row", "cnn"]
    assert main(["denoising", *place, "--output", str(tmp_path / "one")]) == 0
    assert main(["denoising", *place, "--output", str(tmp_path / "two"), "--jobs", "2"]) == 0
    one, two = (load_experiment("denoising").read_results(tmp_path / folder) for folder in ("one", "two"))
    assert [(result.name, result.metrics) for result in one] == [(result.name, result.metrics) for result in two]
    assert [result.name for result in one] == ["noisy", "cnn"]
    assert "failed" not in capsys.readouterr().err


@pytest.mark.process
def test_the_list_needs_no_torch() -> None:
    code = "import sys; from experiments.__main__ import main; main(['--list']); sys.exit('torch' in sys.modules)"
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert all(name in done.stdout for name in REGISTRY)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["denoising", "--row", "best"], "there is no 'best'; choose from noisy, cnn"),
        (["denoising", "--config", "absent.yaml"], "config: cannot read absent.yaml"),
        (["denoising", "--data", "absent", "--row", "noisy"], "point --data"),
        (["mnist", "--split", "train"], "split: Input should be 'test' or 'validation'"),
        (["fields", "--split", "validation"], "the rows of fields have one split only"),
        (["mnist", "--report-only"], "there are no results of mnist in"),
    ],
)
def test_rejects_wrong_arguments(
    arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*arguments, "--output", str(tmp_path)]) == 1
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [[], ["segmentation"], ["mnist", "--jobs", "0"], ["mnist", "--device", "abacus"]])
def test_rejects_wrong_usage(arguments: list[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(arguments)


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("mnist", {"samples": {"kind": "uniform", "share": 0.0}}, "samples: share must be positive"),
        ("mnist", {"paper": [0.99]}, "paper must give 4 accuracies"),
        ("rotation", {"levels": 3}, "levels must be positive for a stack or copies, and None for lenet"),
        ("mnist", {"training": {"steps": 0, "batch_size": 1}}, "training: steps must be positive"),
        ("mnist", {"training": {"steps": 1}}, "training.batch_size"),
        ("mnist", {"seed": True}, "seed: .*got True"),
        ("mnist", {"model": "resnet"}, "model: "),
        ("mnist", {"epochs": 1}, "epochs: "),
        ("denoising", {"training": {"steps": 1, "batch_size": 1}}, "training must be None"),
        ("denoising", {"weights": "least_squares"}, "weights initial"),
        ("denoising", {"candidates": {}}, "split must be validation for a row with candidates, got test"),
        ("denoising", {"candidates": {"steps": [1]}, "split": "validation"}, "training must be given"),
        ("grids", {"search": True}, "split must be validation for a search, got test"),
        (
            "grids",
            {"sigma_guide": 0.1},
            "sigma_guide must be given for a space with an additional guide only",
        ),
        ("mri", {"training": {"steps": 1, "batch_size": 1}}, "training must be None"),
        ("mri", {"size": 31}, "size must be even"),
        ("mri", {"options": {"width": 4}}, "options do not fit the method linear"),
        ("upsampling", {"method": "magic"}, "method must be one of"),
        ("lidar", {"places": ["paris"]}, "places must be among"),
        ("points", {"shares": [1.0, 0.5]}, "shares must be two numbers"),
        ("points", {"points": [1000]}, "points must be given where training is null"),
        ("grabcut", {"grid": {"colors": [0.01]}}, "grid must be empty"),
        ("grabcut", {"settings": {"colour": 1.0}}, "settings"),
        ("fields", {"dimensions": [2]}, "dimensions must be in"),
    ],
)
def test_rejects_nonsense_in_rows(name: str, changes: dict[str, Any], message: str) -> None:
    experiment = load_experiment(name)
    row_name, row = next(iter(experiment.read_rows()["rows"].items()))
    with pytest.raises(InputError, match=message):
        parse_config(experiment.config, {"name": row_name} | row | changes)


def test_shorten_lowers_numbers_and_replaces_none() -> None:
    settings = TrainingSettings(steps=100, batch_size=2)
    assert shorten(settings, {"steps": 5, "batch_size": 4, "gradient_clip": 1.0}) == TrainingSettings(
        steps=5, batch_size=2, gradient_clip=1.0
    )


def test_a_pattern_chooses_rows() -> None:
    configs = load_experiment("denoising").choose_rows(["steps_*", "noisy"])
    assert [config.name for config in configs] == ["steps_pcnn", "steps_pcnn_cnn", "noisy"]


def test_seeds_repeat_all_rows() -> None:
    configs = with_seeds(load_experiment("denoising").choose_rows(["noisy", "cnn"]), 2)
    assert [(config.name, config.seed) for config in configs] == [("noisy", 0), ("cnn", 0), ("noisy", 1), ("cnn", 1)]


def test_a_failing_row_stops_the_run(tmp_path: Path) -> None:
    from experiments.experiment import run_rows

    experiment = load_experiment("denoising")
    [config] = experiment.choose_rows(["noisy"], smoke=True)
    with pytest.raises(PermutohedralError, match="point --data"):
        list(run_rows(experiment, [config], RunOptions(tmp_path, tmp_path / "absent", "cpu"), silent))


@pytest.mark.process
def test_ctrl_c_prints_the_command_that_continues(tmp_path: Path) -> None:
    options = ["--smoke", "--jobs", "2", "--device", "cpu", "--output", str(tmp_path)]
    command = [sys.executable, "-m", "experiments", "fields", *options]
    root = Path(__file__).resolve().parents[2]
    process = subprocess.Popen(command, cwd=root, stderr=subprocess.PIPE, text=True, start_new_session=True)
    assert process.stderr is not None
    assert "1 of 9" in process.stderr.readline()
    os.killpg(process.pid, signal.SIGINT)
    _, rest = process.communicate(timeout=60)
    last = rest.splitlines()[-1]
    assert last == f"interrupted; to continue: python -m experiments fields {' '.join(options)} --resume"
    assert "Traceback" not in rest
    assert process.returncode == 130


def test_progress_is_a_line_for_every_tenth(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = RunOptions(tmp_path, progress=True)
    assert list(options.track(range(25), "training")) == list(range(25))
    assert [line.split(",")[0] for line in capsys.readouterr().err.splitlines()] == [
        f"training: {percent} %" for percent in range(10, 101, 10)
    ]


def test_the_list_says_how_long_experiments_took(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert (
        "(NVIDIA H200)" in lines[1 + next(number for number, line in enumerate(lines) if line.startswith("rotation"))]
    )
