"""The benchmarks from data to report: registry, peers, checks, timing, runner, command."""

from __future__ import annotations

import copy
import json
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import permutohedral as ph
from benchmarks import __main__ as command
from benchmarks import environment, inputs, peers, probes, report, runner, verify
from benchmarks.filters import PROBLEMS, problems_of
from benchmarks.inputs import FilterProblem, Inputs
from benchmarks.registry import OURS, Absent, Contender, Measured, Prepared, Recorded, Workload, recorded, select
from benchmarks.timing import Timing, time_in_turn
from benchmarks.verify import ExactGaussian, relative_error

CPU = torch.device("cpu")
# two float32 filters with the same stencil; points near the face of a simplex may fall on either side
SAME_FILTER = 1e-3


@pytest.fixture(scope="module")
def problem() -> FilterProblem:
    return inputs.bilateral_problem(inputs.synthetic_image(40, 50), (4.0, 0.1), "test image")


@pytest.fixture
def wrong_filter(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make every backend but the reference wrong by one percent."""
    filter_values = ph.permutohedral_filter

    def filter_wrongly(*arguments: Any, **options: Any) -> Tensor:
        forced = "forced" in ph.explain_backend(torch.zeros(1))
        return filter_values(*arguments, **options) * (1.0 if forced else 1.01)

    monkeypatch.setattr(ph, "permutohedral_filter", filter_wrongly)


class TestRegistry:
    def test_names_are_unique(self) -> None:
        names = [workload.name for workload in runner.WORKLOADS]
        assert len(names) == len(set(names))

    def test_each_is_prepared_or_measured(self) -> None:
        assert all((workload.prepare is None) != (workload.measure is None) for workload in runner.WORKLOADS)

    def test_selects_by_name_or_prefix(self) -> None:
        def names(*given: str) -> list[str]:
            return [workload.name for workload in select(runner.WORKLOADS, given, "cpu")]

        assert names("W1") == ["W1"]
        assert names("w5", "W2") == ["W2", "W5-W1", "W5-W1b", "W5-W4"]
        assert all(workload.device != "cpu" for workload in select(runner.WORKLOADS, None, "cuda"))

    def test_lists_known_names_for_an_unknown_one(self) -> None:
        with pytest.raises(ph.InputError, match=r"no workload 'W9'.*W1, W1b"):
            select(runner.WORKLOADS, ["W9"], "cpu")

    def test_recorded_figures_depend_on_threads(self) -> None:
        assert Recorded("peer", {0: 7.0}).at(3) == 7.0
        assert [figure.at(2) for figure in recorded(a=1.0, b=(7.0, 5.0))] == [1.0, 5.0]
        assert Recorded("peer", {1: 7.0}).at(2) is None


class TestInputs:
    @pytest.mark.parametrize(
        ("name", "points", "dimension", "channels"),
        [("W1", 2**20, 5, 3), ("W2", 481 * 321, 3, 1), ("W3", 500 * 375, 5, 21), ("W4", 10**6, 3, 32)],
    )
    def test_sizes(self, name: str, points: int, dimension: int, channels: int) -> None:
        made = PROBLEMS[name](Inputs(None, CPU))
        assert made.features.shape == (points, dimension)
        assert made.values.shape == (points, channels)
        assert made.features.dtype == made.values.dtype == torch.float32

    def test_data_is_seeded(self) -> None:
        first, second = (PROBLEMS["W3"](Inputs(None, CPU)) for _ in range(2))
        assert torch.equal(first.features, second.features)
        assert torch.equal(first.values, second.values)

    def test_variants_differ_and_are_made_once(self) -> None:
        given = Inputs(None, CPU)
        variants = problems_of("W2", given)
        assert variants is problems_of("W2", given)
        assert not any(torch.equal(variants[0].features, other.features) for other in variants[1:])

    def test_reads_the_photo_from_the_data_folder(self, tmp_path: Path) -> None:
        image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
        folder = tmp_path / "bsds500" / "val"
        folder.mkdir(parents=True)
        image.fromarray(np.full((321, 481, 3), 128, np.uint8)).save(folder / inputs.PHOTO)
        pixels, origin = Inputs(tmp_path, CPU).photo
        assert "substitute" not in origin
        assert int(pixels.min()) == int(pixels.max()) == 128

    def test_names_a_substitute(self, tmp_path: Path) -> None:
        pixels, origin = Inputs(tmp_path, CPU).photo
        assert "substitute" in origin
        assert pixels.shape == (321, 481, 3)


class TestExactGaussian:
    def test_equals_the_sum_over_all_pairs(self, problem: FilterProblem) -> None:
        exact = ExactGaussian(problem, num_pairs=1e5)
        features, values = problem.features.double(), problem.values.double()
        weights = torch.cdist(features[exact.rows], features).square().mul(-0.5).exp()
        expected = weights @ values / weights.sum(dim=1, keepdim=True)
        torch.testing.assert_close(exact.values, expected, rtol=1e-6, atol=0)
        assert len(exact.rows) < len(features)

    def test_error_is_relative(self, problem: FilterProblem) -> None:
        exact = ExactGaussian(problem)
        result = torch.zeros_like(problem.values, dtype=torch.float64)
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


class TestPeers:
    def test_densecrf_filters_as_we_do(self, problem: FilterProblem) -> None:
        variants = problem.variants()
        for make in (peers.densecrf_filter, peers.densecrf_reused):
            contender = require(make(variants, None))
            for number, variant in enumerate(variants):
                ours = ph.gaussian_filter(variant.values, variant.features)
                assert relative_error(run_once(contender, number), ours) < SAME_FILTER

    def test_opencv_filters_the_same_image(self, problem: FilterProblem) -> None:
        error = ExactGaussian(problem).error
        contender = require(peers.opencv_bilateral([problem], error))
        assert contender.error is not None
        assert contender.error(run_once(contender)) < error(problem.values)

    def test_bilateral_grid_is_close_to_the_exact_filter(self) -> None:
        gray = inputs.bilateral_problem(inputs.synthetic_image(40, 50)[:1], (4.0, 0.1), "test image")
        contender = require(peers.bilateral_grid([gray], None))
        assert ExactGaussian(gray).error(run_once(contender)) < 0.01

    def test_bilateral_grid_leaves_colors_out(self, problem: FilterProblem) -> None:
        pytest.importorskip("scipy", reason="scipy is not installed")
        absent = peers.bilateral_grid([problem], None)
        assert isinstance(absent, Absent)
        assert "gray images only" in absent.reason

    def test_names_a_missing_library(self, problem: FilterProblem, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(peers, "version_of", lambda library: None)
        for make in (peers.densecrf_filter, peers.densecrf_reused, peers.opencv_bilateral, peers.bilateral_grid):
            absent = make([problem], None)
            assert isinstance(absent, Absent)
            assert "make bench" in absent.reason


class TestVerify:
    def test_accepts_a_correct_operator(self, problem: FilterProblem) -> None:
        assert set(verify.check_gaussian(problem)) == {"float64", "float32"}
        assert set(verify.check_build(problem.small().features, 1, True)) == {"float64"}
        assert set(verify.check_convolution(problem.small(200).features, 4, 1)) == {"float64", "float32"}

    @pytest.mark.usefixtures("wrong_filter")
    def test_rejects_a_wrong_operator(self, problem: FilterProblem) -> None:
        with pytest.raises(verify.OperatorDisagrees, match="learned convolution"):
            verify.check_convolution(problem.small(200).features, 4, 1)

    def test_sees_other_neighbors(self, problem: FilterProblem) -> None:
        lattice = ph.build_lattice(problem.features, neighborhood_size=1)
        other = ph.build_lattice(problem.features, neighborhood_size=1)
        assert verify.same_lattice(lattice, other)
        tap, row = (other.neighbors >= 0).nonzero()[-1].tolist()
        other.neighbors[tap, row] = -1
        assert not verify.same_lattice(lattice, other)


class TestTiming:
    def test_contenders_take_turns_with_changing_inputs(self) -> None:
        calls: list[tuple[str, int]] = []

        def record(name: str) -> Contender:
            return Contender(name, lambda number: calls.append((name, number)))

        contenders = [record(name) for name in "ab"]
        timings = time_in_turn(contenders, 3, CPU)
        names = [name for name, _ in calls]
        # both run between any two rounds of the other
        assert names.index("b") < len(names) - 1 - names[::-1].index("a")
        assert {number for _, number in calls} == set(range(len(timings[0].seconds)))

    def test_before_precedes_every_run(self) -> None:
        calls: list[str] = []
        contender = Contender("a", lambda number: calls.append("run"), lambda number: calls.append("before"))
        time_in_turn([contender], 2, CPU)
        assert calls == ["before", "run"] * (len(calls) // 2)

    def test_subtracts_the_baseline(self) -> None:
        timing = Timing(seconds=[5.0, 3.0, 4.0], baseline_seconds=[1.0, 2.0, 1.0])
        assert timing.median == 3.0
        assert timing.quantile(0.9) == 4.0


def tiny_workloads(problem: FilterProblem) -> tuple[Workload, ...]:
    def prepare(given: Inputs) -> Prepared:
        error = ExactGaussian(problem).error
        ours = Contender(OURS, lambda number: ph.gaussian_filter(problem.values, problem.features), error=error)
        twice = Contender("twice", lambda number: [ours.run(number) for _ in range(2)])
        check = partial(verify.check_convolution, problem.small(200).features, 2, 1)
        missing = Absent("missing", "not installed")
        return Prepared(ours, [twice, missing], check, "substitute image", {"points": 2000})

    def measure(given: Inputs, threads: int, repeats: int, with_peers: bool) -> Measured:
        return Measured({OURS: [2.0, 4.0, 3.0], "other": [6.0]})

    figures = recorded(slow=1000.0, fast=100.0)
    return (
        Workload("T1", "a tiny filter", "cpu", prepare, recorded=figures),
        Workload("T2", "a tiny quantity", "cpu", measure=measure, unit="MB", recorded=figures[:1]),
    )


@pytest.fixture
def tiny(problem: FilterProblem, monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the workloads by tiny ones, and shorten the yardstick."""
    monkeypatch.setattr(runner, "WORKLOADS", tiny_workloads(problem))
    monkeypatch.setattr(environment, "_YARDSTICK_KEYS", 1000)


@pytest.fixture(scope="module")
def found_once(problem: FilterProblem) -> dict[str, Any]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runner, "WORKLOADS", tiny_workloads(problem))
        patch.setattr(environment, "_YARDSTICK_KEYS", 1000)
        return runner.run(runner.Options(threads=(1, 2), repeats=2))


@pytest.fixture
def found(found_once: dict[str, Any]) -> dict[str, Any]:
    """The report of the tiny workloads."""
    return copy.deepcopy(found_once)


class TestRunner:
    def test_reports_each_workload_and_thread_count(self, found: dict[str, Any]) -> None:
        runs = [(result["workload"], result["threads"]) for result in found["results"]]
        assert runs == [("T1", 1), ("T1", 2), ("T2", 1), ("T2", 2)]

    def test_reports_ratios_and_errors(self, found: dict[str, Any]) -> None:
        first = found["results"][0]
        assert 0 < first["ours"]["error"] < 0.1
        (peer,) = first["peers"]
        assert peer["ratio"] == pytest.approx(peer["median"] / first["ours"]["median"])
        assert first["absent"] == [{"name": "missing", "reason": "not installed"}]
        assert first["checked"]["float64"] <= verify.LIMITS[torch.float64]

    def test_scales_recorded_times_but_not_bytes(self, found: dict[str, Any]) -> None:
        filtered, quantity = found["results"][0], found["results"][2]
        assert filtered["recorded"][0]["scaled"] == pytest.approx(1000 * found["yardstick"]["slowness"])
        assert quantity["recorded"][0]["scaled"] == 1000
        assert quantity["peers"][0]["ratio"] == 2.0

    @pytest.mark.usefixtures("tiny")
    def test_restores_threads(self) -> None:
        before = torch.get_num_threads()
        runner.run(runner.Options(only=["T2"], threads=(before + 1,)))
        assert torch.get_num_threads() == before

    def test_names_machine_versions_and_commit(self, found: dict[str, Any]) -> None:
        about = found["environment"]
        assert about["versions"]["torch"] == torch.__version__
        assert about["cores"] >= 1
        assert {"processor", "commit", "date", "system", "backend"} <= set(about)

    @pytest.mark.usefixtures("tiny", "wrong_filter")
    def test_does_not_time_a_wrong_operator(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert command.main(["--only", "T1", "--repeats", "1", "--threads", "1"]) == 1
        printed = capsys.readouterr().out
        assert printed.splitlines()[1].split() == ["T1", "1", "failed"]
        assert "failed: T1: the learned convolution" in printed

    @pytest.mark.usefixtures("tiny")
    def test_continues_after_a_failure(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def fail(given: Inputs) -> Prepared:
            raise MemoryError("too large")

        monkeypatch.setattr(runner, "WORKLOADS", (Workload("T0", "fails", "cpu", fail), *runner.WORKLOADS))
        first, second = runner.run(runner.Options(only=["T0", "T2"]))["results"]
        assert first["failed"] == "MemoryError: too large"
        assert second["ours"]["median"] == 3.0

    def test_keeps_results_after_an_interrupt(self, tiny: None, monkeypatch: pytest.MonkeyPatch) -> None:
        def interrupt(given: Inputs) -> Prepared:
            raise KeyboardInterrupt

        first, second = runner.WORKLOADS
        monkeypatch.setattr(runner, "WORKLOADS", (second, Workload("T0", "stops", "cpu", interrupt), first))
        logged: list[str] = []
        found = runner.run(runner.Options(), logged.append)
        assert [result["workload"] for result in found["results"]] == ["T2"]
        assert any("interrupted" in message and "T0" in message for message in logged)

    def test_names_a_missing_device(self) -> None:
        if torch.cuda.is_available():
            pytest.skip("there is a GPU here")
        with pytest.raises(ph.BackendUnavailable, match="no GPU"):
            runner.run(runner.Options(device="cuda"))


def test_table_shows_the_best_recorded_peer_and_remarks(found: dict[str, Any]) -> None:
    text = report.format_table(found)
    assert "fast 100 ms" in text
    assert "slow 1000 ms" not in text
    assert "substitute image" in text
    assert "absent: missing" in text


def test_chart_is_drawn(found: dict[str, Any], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed").use("Agg")
    report.draw_chart(found, tmp_path / "chart.png")
    assert (tmp_path / "chart.png").stat().st_size > 1000
    for result in found["results"]:
        result["peers"], result["recorded"] = [], []
    with pytest.raises(ph.InputError, match="no workload of this run has a peer"):
        report.draw_chart(found, tmp_path / "chart.png")


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the peak is read from /proc, which Linux has")
def test_peak_memory_counts_freed_blocks() -> None:
    before = probes._reset_peak()
    block = np.ones(40_000_000, np.uint8)
    del block
    # the system counts pages in batches
    assert 39e6 <= probes._status("VmHWM") - before < 60e6


def test_import_time_is_measured_in_a_new_process() -> None:
    measured = probes.measure_import(Inputs(None, CPU), 1, 1, False)
    assert measured.samples[OURS][0] > 0


def test_command_rejects_an_unknown_workload(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--only", "W9"]) == 1
    assert "no workload 'W9'" in capsys.readouterr().err


@pytest.mark.usefixtures("tiny")
def test_command_writes_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "report.json"
    assert command.main(["--only", "T2", "--threads", "1", "--json", str(path)]) == 0
    assert "T2" in capsys.readouterr().out
    assert json.loads(path.read_text())["options"]["only"] == ["T2"]
