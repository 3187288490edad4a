"""The benchmarks from data to report: registry, peers, timing, runner, command."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import permutohedral as ph
from benchmarks import __main__ as command
from benchmarks import compare, inputs, layers, peers, report, run_time, runner
from benchmarks.exact import ExactGaussian
from benchmarks.filters import PROBLEMS, problems_of
from benchmarks.inputs import FilterProblem, Inputs
from benchmarks.registry import OURS, Absent, Contender, Measured, Prepared, Workload, select
from benchmarks.timing import Timing, time_in_turn
from experiments.quality import relative_error

CPU = torch.device("cpu")
# two float32 filters with the same stencil; points near the face of a simplex may fall on either side
SAME_FILTER = 1e-3


@pytest.fixture(scope="module")
def problem() -> FilterProblem:
    return inputs.bilateral_problem(inputs.synthetic_image(40, 50), (4.0, 0.1), "test image")


def test_every_workload_is_published() -> None:
    names = [workload.name for workload in runner.WORKLOADS]
    assert len(names) == len(set(names))
    assert all((workload.prepare is None) != (workload.measure is None) for workload in runner.WORKLOADS)
    page = (Path(__file__).resolve().parents[2] / "docs" / "research" / "benchmarks.md").read_text()
    for workload in runner.WORKLOADS:
        devices = ("cpu", "h200") if workload.device == "any" else (workload.device.replace("cuda", "h200"),)
        for device in devices if workload.table != "run-time" else ():
            assert f"<!-- table: results/benchmark-{device}.json#{workload.table} -->" in page, workload.name
    assert set(compare.RENAMED) <= set(names)
    assert not set(compare.RENAMED.values()) & set(names)


def test_selects_by_name_or_prefix() -> None:
    def names(*given: str) -> list[str]:
        return [workload.name for workload in select(runner.WORKLOADS, given, "cpu")]

    assert names("photo-1024") == ["photo-1024"]
    assert names("reference", "Labels-21") == ["labels-21", "reference-photo", "reference-layer"]
    assert names("run-time-4") == ["run-time-4-forward", "run-time-4-training"]
    assert all(workload.device != "cpu" for workload in select(runner.WORKLOADS, None, "cuda"))
    with pytest.raises(ph.errors.InputError, match=r"no workload 'W9'.*photo-1024, "):
        select(runner.WORKLOADS, ["W9"], "cpu")


@pytest.mark.parametrize(
    ("name", "points", "dimension", "channels"),
    [("photo-gray", 481 * 321, 3, 1), ("labels-21", 500 * 375, 5, 21)],
)
def test_problems_are_seeded_and_have_variants(name: str, points: int, dimension: int, channels: int) -> None:
    given = Inputs(None, CPU)
    made, again = problems_of(name, given), PROBLEMS[name](Inputs(None, CPU))
    assert made[0].features.shape == (points, dimension)
    assert made[0].values.shape == (points, channels)
    assert torch.equal(made[0].features, again.features)
    assert torch.equal(made[0].values, again.values)
    assert made is problems_of(name, given)
    assert not any(torch.equal(made[0].features, other.features) for other in made[1:])


def test_the_exact_gaussian_is_the_sum_over_all_pairs(problem: FilterProblem) -> None:
    exact = ExactGaussian(problem, num_pairs=1e5)
    features, values = problem.features.double(), problem.values.double()
    weights = torch.cdist(features[exact.rows], features).square().mul(-0.5).exp()
    expected = weights @ values / weights.sum(dim=1, keepdim=True)
    torch.testing.assert_close(exact.values, expected, rtol=1e-6, atol=0)
    assert len(exact.rows) < len(features)
    result = torch.zeros_like(values)
    result[exact.rows] = 1.25 * exact.values
    assert exact.error(result) == pytest.approx(0.25)


def require(contender: Contender | Absent) -> Contender:
    if isinstance(contender, Absent):
        pytest.skip(f"{contender.name}: {contender.reason}")
    return contender


def run_once(contender: Contender, number: int = 0) -> Any:
    if contender.before is not None:
        contender.before(number)
    return contender.run(number)


@pytest.mark.parametrize("part", ["filter", "reused"])
def test_densecrf_filters_as_we_do(part: str, problem: FilterProblem) -> None:
    variants = problem.variants()
    contender = require(peers.densecrf(variants, part))
    for number, variant in enumerate(variants):
        ours = ph.gaussian_filter(variant.values, variant.features)
        assert relative_error(run_once(contender, number), ours) < SAME_FILTER


def test_opencv_filters_the_same_image(problem: FilterProblem) -> None:
    error = ExactGaussian(problem).error
    contender = require(peers.opencv_bilateral([problem], error))
    assert contender.error is not None
    assert contender.error(run_once(contender)) < error(problem.values)


def test_the_bilateral_grid_is_close_to_the_exact_filter_of_gray_images(problem: FilterProblem) -> None:
    gray = inputs.bilateral_problem(inputs.synthetic_image(40, 50)[:1], (4.0, 0.1), "test image")
    contender = require(peers.bilateral_grid([gray], None))
    assert ExactGaussian(gray).error(run_once(contender)) < 0.01
    absent = peers.bilateral_grid([problem], None)
    assert isinstance(absent, Absent)
    assert "gray images only" in absent.reason


def test_contenders_take_turns_with_changing_inputs() -> None:
    calls: list[tuple[str, int]] = []

    def record(name: str) -> Contender:
        return Contender(name, lambda number: calls.append((name, number)), lambda number: calls.append(("-", number)))

    timings = time_in_turn([record(name) for name in "ab"], 3, CPU)
    assert calls[::2] == [("-", number) for _, number in calls[1::2]]
    runs = [name for name, _ in calls[1::2]]
    # both run between any two rounds of the other
    assert runs.index("b") < len(runs) - 1 - runs[::-1].index("a")
    assert {number for _, number in calls} == set(range(len(timings[0].seconds)))


def test_subtracts_the_baseline() -> None:
    timing = Timing(seconds=[5.0, 3.0, 4.0], baseline_seconds=[1.0, 2.0, 1.0])
    assert timing.median == 3.0
    assert timing.quantile(0.9) == 4.0


@pytest.fixture
def tiny(problem: FilterProblem, monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the workloads by a tiny filter t1, a quantity t2, and t3, which fails."""

    def prepare(given: Inputs) -> Prepared:
        error = ExactGaussian(problem).error
        ours = Contender(OURS, lambda number: ph.gaussian_filter(problem.values, problem.features), error=error)
        same = Contender(peers.DENSECRF, ours.run)
        return Prepared(ours, [same, Absent("missing", "not installed")], "substitute image")

    def measure(given: Inputs, threads: int, repeats: int, with_peers: bool) -> Measured:
        return Measured({OURS: [2.0, 4.0, 3.0], "other": [6.0]})

    def fail(given: Inputs) -> Prepared:
        raise MemoryError("too large")

    workloads = (
        Workload("t1", "a tiny filter", "cpu", "filters", prepare),
        Workload("t2", "a tiny quantity", "cpu", "filters", measure=measure, unit="MB"),
        Workload("t3", "a failure", "cpu", "filters", fail, optional=True),
    )
    monkeypatch.setattr(runner, "WORKLOADS", workloads)


@pytest.mark.usefixtures("tiny")
def test_the_report_has_figures_peers_and_the_machine() -> None:
    before = torch.get_num_threads()
    found = runner.run(runner.Options(threads=(1, 2), repeats=2))
    assert torch.get_num_threads() == before
    runs = [(result["workload"], result["threads"]) for result in found["results"]]
    assert runs == [("t1", 1), ("t1", 2), ("t2", 1), ("t2", 2)]
    filtered, quantity = found["results"][0], found["results"][2]
    assert 0 < filtered["ours"]["error"] < 0.1
    (peer,) = filtered["others"]
    assert peer["ratio"] == pytest.approx(peer["median"] / filtered["ours"]["median"])
    assert [peer["name"] for peer in filtered["absent"]] == ["missing"]
    assert quantity["others"][0]["ratio"] == 2.0
    about = found["environment"]
    assert about["versions"]["torch"] == torch.__version__
    assert {"hardware", "commit", "created", "backend"} <= set(about)
    text = report.format_table(found)
    for part in ("3 to 4", "substitute image", "absent: missing"):
        assert part in text


@pytest.mark.usefixtures("tiny")
def test_a_failure_does_not_cost_the_other_figures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "report.json"
    assert command.main(["--only", "t3", "--only", "t2", "--threads", "1", "--json", str(path)]) == 1
    printed = capsys.readouterr().out
    assert "failed: t3: MemoryError: too large" in printed
    found = json.loads(path.read_text())
    assert found["options"]["only"] == ["t3", "t2"]
    assert found["results"][0]["ours"]["median"] == 3.0
    assert command.main(["--only", "t2", "--threads", "1"]) == 0


def test_keeps_results_after_an_interrupt(tiny: None, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(given: Inputs) -> Prepared:
        raise KeyboardInterrupt

    first, second, _ = runner.WORKLOADS
    monkeypatch.setattr(runner, "WORKLOADS", (second, Workload("t0", "stops", "cpu", "filters", interrupt), first))
    logged: list[str] = []
    found = runner.run(runner.Options(), logged.append)
    assert [result["workload"] for result in found["results"]] == ["t2"]
    assert any("interrupted" in message and "t0" in message for message in logged)


def test_names_a_missing_device() -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    with pytest.raises(ph.errors.BackendUnavailable, match="no GPU"):
        runner.run(runner.Options(device="cuda"))


def test_list_ends_quietly_when_its_reader_does() -> None:
    command = [sys.executable, "-m", "benchmarks", "--list"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as listing:
        assert listing.stdout is not None
        assert listing.stderr is not None
        listing.stdout.close()
        assert listing.stderr.read() == ""


def test_command_lists_workloads_and_rejects_an_unknown_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--list"]) == 0
    assert "photo-1024" in capsys.readouterr().out
    assert command.main(["--only", "W9"]) == 1
    assert "no workload 'W9'" in capsys.readouterr().err


class SmallPhoto(Inputs):
    """A photo of 20 x 30 pixels."""

    photo = (255 * inputs.synthetic_image(20, 30)).byte().permute(1, 2, 0), "test image"


@pytest.mark.parametrize("training", [False, True])
def test_layers_of_the_run_times_compute_the_same(training: bool) -> None:
    prepared = run_time.prepare(SmallPhoto(None, CPU), channels=4, training=training)
    contenders = [prepared.ours, *map(require, prepared.others)]
    assert len({contender.name for contender in contenders}) == len(contenders) == 14
    for number, (built, reused) in enumerate(zip(contenders[:12:2], contenders[1:12:2], strict=True)):
        assert built.name.removesuffix("built") == reused.name.removesuffix("reused")
        image, points = built.run(0), reused.run(0)
        if training:
            # of the values, the filter and the bias
            assert [each.shape for each in image[1:]] == [each.shape for each in points[1:]]
            assert points[1].shape[0] == (7, 19, 15, 65, 15, 65)[number]
            image, points = image[0], points[0]
        torch.testing.assert_close(image[0].flatten(1).mT, points, rtol=1e-4, atol=1e-5)
    for convolution in contenders[12:]:
        assert convolution.name in run_time.CONVOLUTIONS
        assert (convolution.run(0)[0] if training else convolution.run(0)).shape == (1, 4, 20, 30)


@pytest.mark.parametrize("name", layers.KINDS)
def test_captured_steps_train_as_the_others(name: str) -> None:
    made: list[torch.nn.Module] = []

    def make() -> torch.nn.Module:
        made.append(layers.KINDS[name].make())
        return made[-1]

    prepared = layers.prepare_captured(Inputs(None, CPU), layers.KINDS[name]._replace(make=make, points=30))
    start = [each.detach().clone() for each in made[0].parameters()]
    results = []
    for contender in (prepared.ours, require(prepared.others[0])):
        with torch.no_grad():
            for each, value in zip(made[0].parameters(), start, strict=True):
                each.copy_(value)
        contender.run(1)
        results.append([each.detach().clone() for each in made[0].parameters()])
    assert any(not torch.equal(*pair) for pair in zip(start, results[0], strict=True))
    torch.testing.assert_close(*results, rtol=1e-5, atol=1e-6)
