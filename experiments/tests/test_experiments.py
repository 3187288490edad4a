"""All experiments of the registry: rows, smoke runs, resuming, reports, errors."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from datasets import data_folder

from experiments import training
from experiments.__main__ import main
from experiments.experiment import run_row, shorten, with_seeds
from experiments.registry import REGISTRY, load_experiment
from experiments.results import parse_config, read_weights, write_table
from experiments.training import RunOptions, TrainingSettings
from permutohedral.errors import InputError, PermutohedralError

RESULTS = Path(__file__).resolve().parents[2] / "results"


def quick(name: str) -> tuple[Path, list[str]]:
    """Return the folder of the data and the quick rows of an experiment."""
    chosen = load_experiment(name).read_rows()["quick"]
    return data_folder(chosen["data"]), chosen["rows"]


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


@pytest.mark.parametrize("name", REGISTRY)
def test_published_results_belong_to_rows(name: str) -> None:
    experiment = load_experiment(name)
    content = experiment.read_rows()
    folder = RESULTS if experiment.as_table else RESULTS / name
    results = experiment.read_results(folder)
    if not results:
        pytest.skip("not measured yet")
    assert {result.name for result in results} <= {*content["rows"], *content.get("more_rows", {})}
    pages = experiment.report(results, RunOptions(folder))
    for page in pages:
        published = (folder / f"{page.name}.md").read_text()
        assert all(str(table) in published for table in page.tables)


@pytest.mark.parametrize("name", [name for name in REGISTRY if load_experiment(name).as_table])
def test_published_tables_have_the_settings_of_today(name: str, tmp_path: Path) -> None:
    experiment = load_experiment(name)
    results = experiment.read_results(RESULTS)
    if not results:
        pytest.skip("not measured yet")
    for result in results:
        assert len(result.environment["commit"]) == 9, "a commit with changes"
        stored = parse_config(experiment.config, result.config)
        if result.split == "test":
            [today] = experiment.choose_rows([result.name])
            assert stored == replace(today, seed=result.seed)
    for kind in ("csv", "yaml"):
        (tmp_path / f"{name}.{kind}").write_bytes((RESULTS / f"{name}.{kind}").read_bytes())
    # reading and writing changes nothing, and the page is made from these two files
    write_table(tmp_path / f"{name}.csv", experiment.read_results(tmp_path))
    assert main([name, "--report-only", "--output", str(tmp_path)]) == 0
    for path in tmp_path.iterdir():
        assert path.read_bytes() == (RESULTS / path.name).read_bytes(), path.name


@pytest.mark.slow
@pytest.mark.parametrize("name", REGISTRY)
def test_a_smoke_run_leaves_results_and_a_report(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data, rows = quick(name)
    chosen = [word for row in rows for word in ("--row", row)]
    place = ["--data", str(data), "--output", str(tmp_path), "--device", "cpu"]
    assert main([name, "--smoke", *chosen, *place]) == 0
    printed = capsys.readouterr()
    titles = [config.title for config in load_experiment(name).choose_rows(rows)]
    assert all(title in printed.out for title in titles)
    results = load_experiment(name).read_results(tmp_path)
    assert sorted((result.name, result.seed) for result in results) == sorted((row, 0) for row in rows)
    assert list(tmp_path.glob("*.md"))
    assert not list(tmp_path.rglob("*.partial*"))
    assert main([name, "--smoke", "--resume", *chosen, *place]) == 0
    assert capsys.readouterr().err.count(": kept") == len(rows)
    assert main([name, "--report-only", *place]) == 0


@pytest.mark.slow
@pytest.mark.parametrize("name", REGISTRY)
def test_an_interrupted_training_ends_like_an_uninterrupted_one(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, rows = quick(name)
    experiment = load_experiment(name)
    [config] = experiment.choose_rows(rows[-1:], smoke=True)
    if config.training is None:
        pytest.skip("no row is trained")
    config = replace(config, training=replace(config.training, steps=4))
    straight = RunOptions(tmp_path / "straight", data, "cpu")
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
    place = ["--smoke", "--data", str(data_folder("bsds500")), "--device", "cpu", "--row", "noisy", "--row", "cnn"]
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
        (["denoising", "--first", "time_steps"], "it has none"),
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
        ("rotation", {"options": {"normalisation": "none"}}, "options do not fit the model lenet"),
        ("mnist", {"training": {"steps": 0, "batch_size": 1}}, "training: steps must be positive"),
        ("mnist", {"training": {"steps": 1}}, "training.batch_size"),
        ("mnist", {"seed": True}, "seed: .*got True"),
        ("mnist", {"model": "resnet"}, "model: "),
        ("mnist", {"epochs": 1}, "epochs: "),
        ("rotation", {"window": -1}, "window must be at least 0"),
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
        ("mri", {"size": 30}, "size must be a multiple of 4"),
        ("upsampling", {"method": "magic"}, "method must be one of"),
        ("lidar", {"places": ["paris"]}, "places must be among"),
        ("points", {"shares": [1.0, 0.5]}, "shares must be two numbers"),
        ("points", {"points": [1000]}, "points must be given where training is null"),
        ("grabcut", {"grid": {"colors": [0.01]}}, "grid must be empty"),
        ("grabcut", {"settings": {"colour": 1.0}}, "settings"),
        ("fields", {"dimensions": [3]}, "dimensions must be in"),
        ("fields", {"axes": [1.0]}, "axes must have a factor"),
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
