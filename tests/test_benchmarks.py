"""The benchmarks measure what they say: data, exact truth, peers, refusal, timing, files."""

from __future__ import annotations

import copy
import csv
import io
import json
import sys
import types
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import permutohedral as ph
from permutohedral.benchmarks import __main__ as plain_command
from permutohedral.benchmarks import chart, command, environment, inputs, peers, probes, report, runner, verify
from permutohedral.benchmarks.exact import ExactGaussian
from permutohedral.benchmarks.gpu_workloads import GPU_WORKLOADS
from permutohedral.benchmarks.inputs import FilterProblem, Inputs
from permutohedral.benchmarks.registry import OURS, Measured, Prepared, Recorded, Workload, select
from permutohedral.benchmarks.timing import Absent, Contender, Timing, time_in_turn
from permutohedral.benchmarks.workloads import PROBLEMS, WORKLOADS, problem_of
from permutohedral.ops import dispatch, reference

CPU = torch.device("cpu")
# two float32 filters with the same stencil; points near the face of a simplex may fall on either side
SAME_FILTER = 1e-3


@pytest.fixture(scope="module")
def problem() -> FilterProblem:
    return inputs.bilateral_problem(inputs.synthetic_image(40, 50), (4.0, 0.1), "test image")


@pytest.fixture
def broken_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    """A backend, preferred to all others, whose slice is off by one percent."""
    module = types.ModuleType("broken_primitives")
    for name in dir(reference):
        if not name.startswith("_"):
            setattr(module, name, getattr(reference, name))

    def slice_wrongly(*arguments: Tensor) -> Tensor:
        return 1.01 * reference.slice(*arguments)

    module.slice = slice_wrongly  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "broken_primitives", module)
    broken = dispatch.Backend("broken", "broken_primitives", lambda: None, lambda device_type: None)
    monkeypatch.setattr(dispatch, "_BACKENDS", [broken, *dispatch.all_backends()])


def require(contender: Contender | Absent) -> Contender:
    if isinstance(contender, Absent):
        pytest.skip(f"{contender.name}: {contender.reason}")
    return contender


def run_once(contender: Contender) -> Any:
    if contender.before is not None:
        contender.before()
    return contender.run()


class TestRegistry:
    def test_names_are_unique(self) -> None:
        names = [workload.name for workload in (*WORKLOADS, *GPU_WORKLOADS)]
        assert len(names) == len(set(names))

    def test_each_is_prepared_or_measured(self) -> None:
        assert all((workload.prepare is None) != (workload.measure is None) for workload in WORKLOADS + GPU_WORKLOADS)

    def test_a_name_selects_exactly_or_by_its_beginning(self) -> None:
        assert [workload.name for workload in select(WORKLOADS, ["W1"], "cpu")] == ["W1"]
        assert [workload.name for workload in select(WORKLOADS, ["w5", "W2"], "cpu")] == [
            "W2",
            "W5-W1",
            "W5-W1b",
            "W5-W4",
        ]
        assert all(workload.device == "cuda" for workload in select(WORKLOADS + GPU_WORKLOADS, None, "cuda"))

    def test_an_unknown_name_lists_the_known_ones(self) -> None:
        with pytest.raises(ph.InputError, match=r"no workload 'W9'.*W1, W1b"):
            select(WORKLOADS, ["W9"], "cpu")

    def test_recorded_figures_belong_to_a_number_of_threads(self) -> None:
        assert Recorded("peer", {0: 7.0}).at(3) == 7.0
        assert Recorded("peer", {1: 7.0, 2: 5.0}).at(2) == 5.0
        assert Recorded("peer", {1: 7.0}).at(2) is None


class TestInputs:
    @pytest.mark.parametrize(
        ("name", "points", "dimension", "channels"),
        [("W1", 2**20, 5, 3), ("W2", 481 * 321, 3, 1), ("W3", 500 * 375, 5, 21), ("W4", 10**6, 3, 32)],
    )
    def test_sizes_are_those_of_the_workload(self, name: str, points: int, dimension: int, channels: int) -> None:
        made = PROBLEMS[name](Inputs(None, CPU))
        assert made.features.shape == (points, dimension)
        assert made.values.shape == (points, channels)
        assert made.features.dtype == made.values.dtype == torch.float32

    def test_data_is_the_same_every_time(self) -> None:
        first, second = (PROBLEMS["W3"](Inputs(None, CPU)) for _ in range(2))
        assert torch.equal(first.features, second.features)
        assert torch.equal(first.values, second.values)

    def test_the_photo_is_taken_from_the_data_folder(self, tmp_path: Path) -> None:
        image = pytest.importorskip("PIL.Image")
        folder = tmp_path / "bsds500" / "val"
        folder.mkdir(parents=True)
        image.fromarray(np.full((321, 481, 3), 128, np.uint8)).save(folder / inputs.PHOTO)
        pixels, origin = Inputs(tmp_path, CPU).photo
        assert "BSDS500" in origin
        assert "substitute" not in origin
        assert int(pixels.min()) == int(pixels.max()) == 128

    def test_a_substitute_says_so(self, tmp_path: Path) -> None:
        pixels, origin = Inputs(tmp_path, CPU).photo
        assert "substitute" in origin
        assert pixels.shape == (321, 481, 3)

    def test_problems_are_shared_between_workloads(self) -> None:
        given = Inputs(None, CPU)
        assert problem_of("W2", given) is problem_of("W2", given)

    def test_a_small_instance_keeps_dimension_and_channels(self, problem: FilterProblem) -> None:
        small = problem.small(100)
        assert small.features.shape == (100, 5)
        assert small.values.shape == (100, 3)


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


class TestPeers:
    def test_densecrf_filters_as_we_do(self, problem: FilterProblem) -> None:
        ours = ph.gaussian_filter(problem.values, problem.features)
        for make in (peers.densecrf_filter, peers.densecrf_reused):
            contender = require(make(problem, None))
            # twice: the first run must leave nothing behind
            for _ in range(2):
                assert verify.relative_error(run_once(contender), ours) < SAME_FILTER

    def test_opencv_filters_the_same_image(self, problem: FilterProblem) -> None:
        error = ExactGaussian(problem).error
        contender = require(peers.opencv_bilateral(problem, error))
        assert contender.error is not None
        assert contender.error(run_once(contender)) < error(problem.values)

    def test_opencv_does_not_filter_points(self, problem: FilterProblem) -> None:
        require(peers.opencv_bilateral(problem, None))
        absent = peers.opencv_bilateral(problem.small(), None)
        assert isinstance(absent, Absent)
        assert "images only" in absent.reason

    def test_bilateral_grid_is_close_to_the_exact_filter(self) -> None:
        gray = inputs.bilateral_problem(inputs.synthetic_image(40, 50)[:1], (4.0, 0.1), "test image")
        contender = require(peers.bilateral_grid(gray, None))
        assert ExactGaussian(gray).error(run_once(contender)) < 0.01

    def test_a_missing_library_says_how_to_get_it(
        self, problem: FilterProblem, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(peers, "version_of", lambda library: None)
        for make in (peers.densecrf_filter, peers.densecrf_reused, peers.opencv_bilateral, peers.bilateral_grid):
            absent = make(problem, None)
            assert isinstance(absent, Absent)
            assert "permutohedral[bench]" in absent.reason


class TestVerify:
    def test_a_correct_operator_passes(self, problem: FilterProblem) -> None:
        assert set(verify.check_gaussian(problem)) == {"float64", "float32"}
        assert set(verify.check_build(problem.small().features, 1, True)) == {"float64"}
        assert set(verify.check_convolution(problem.small(200).features, 4, 1)) == {"float64", "float32"}

    @pytest.mark.usefixtures("broken_backend")
    def test_a_wrong_operator_is_refused(self, problem: FilterProblem) -> None:
        # the mass is off by as much, so only what is not normalized shows it
        with pytest.raises(verify.OperatorDisagrees, match="learned convolution"):
            verify.check_convolution(problem.small(200).features, 4, 1)

    def test_a_lattice_with_other_neighbors_differs(self, problem: FilterProblem) -> None:
        lattice = ph.build_lattice(problem.features, neighborhood_size=1)
        other = ph.build_lattice(problem.features, neighborhood_size=1)
        assert verify.same_lattice(lattice, other)
        tap, row = (other.neighbors >= 0).nonzero()[-1].tolist()
        other.neighbors[tap, row] = -1
        assert not verify.same_lattice(lattice, other)


class TestTiming:
    def test_contenders_take_turns(self) -> None:
        calls: list[str] = []
        contenders = [Contender(name, partial(calls.append, name)) for name in "ab"]
        timings = time_in_turn(contenders, 3, CPU)
        # both run between any two rounds of the other
        assert calls.index("b") < len(calls) - 1 - calls[::-1].index("a")
        assert all(len(timing.seconds) >= 3 for timing in timings)

    def test_before_precedes_every_run(self) -> None:
        calls: list[str] = []
        time_in_turn([Contender("a", partial(calls.append, "run"), partial(calls.append, "before"))], 2, CPU)
        assert calls[::2] == ["before"] * (len(calls) // 2)
        assert calls[1::2] == ["run"] * (len(calls) // 2)

    def test_the_baseline_is_subtracted(self) -> None:
        timing = Timing(seconds=[5.0, 3.0, 4.0], baseline_seconds=[1.0, 2.0, 1.0])
        assert timing.median == 3.0
        assert timing.quartiles == (2.5, 3.5)

    def test_the_error_is_that_of_the_output(self) -> None:
        (timing,) = time_in_turn([Contender("a", lambda: 7.0, error=lambda output: float(output) / 2)], 1, CPU)
        assert timing.error == 3.5


def tiny_workloads(problem: FilterProblem) -> tuple[Workload, ...]:
    def prepare(given: Inputs) -> Prepared:
        error = ExactGaussian(problem).error
        ours = Contender(OURS, lambda: ph.gaussian_filter(problem.values, problem.features), error=error)
        twice = Contender("twice", lambda: [ours.run() for _ in range(2)])
        check = partial(verify.check_convolution, problem.small(200).features, 2, 1)
        return Prepared(ours, [twice, Absent("nobody", "not installed")], check, "substitute image", {"points": 2000})

    def measure(given: Inputs, threads: int, repeats: int, with_peers: bool) -> Measured:
        return Measured({OURS: [2.0, 4.0, 3.0], "other": [6.0]})

    recorded = (Recorded("slow", {0: 1000.0}), Recorded("fast", {0: 100.0}))
    return (
        Workload("T1", "a tiny filter", "cpu", prepare, recorded=recorded),
        Workload("T2", "a tiny quantity", "cpu", measure=measure, unit="MB", recorded=recorded[:1]),
    )


@pytest.fixture
def tiny(problem: FilterProblem, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiny workloads in place of the registry's, and a short yardstick."""
    monkeypatch.setattr(runner, "ALL_WORKLOADS", tiny_workloads(problem))
    monkeypatch.setattr(environment, "_YARDSTICK_KEYS", 1000)


@pytest.fixture(scope="module")
def found_once(problem: FilterProblem) -> dict[str, Any]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runner, "ALL_WORKLOADS", tiny_workloads(problem))
        patch.setattr(environment, "_YARDSTICK_KEYS", 1000)
        return runner.run(runner.Options(threads=(1, 2), repeats=2))


@pytest.fixture
def found(found_once: dict[str, Any]) -> dict[str, Any]:
    """The report of the tiny workloads."""
    return copy.deepcopy(found_once)


class TestRunner:
    def test_one_result_for_each_workload_and_thread_count(self, found: dict[str, Any]) -> None:
        runs = [(result["workload"], result["threads"]) for result in found["results"]]
        assert runs == [("T1", 1), ("T1", 2), ("T2", 1), ("T2", 2)]

    def test_figures_are_ratios_with_errors(self, found: dict[str, Any]) -> None:
        first = found["results"][0]
        assert 0 < first["ours"]["error"] < 0.1
        assert first["ours"]["median"] > 0
        (peer,) = first["peers"]
        assert peer["ratio"] == pytest.approx(peer["median"] / first["ours"]["median"])
        assert first["absent"] == [{"name": "nobody", "reason": "not installed"}]
        assert first["checked"]["float64"] <= verify.LIMITS[torch.float64]

    def test_recorded_times_are_scaled_and_bytes_are_not(self, found: dict[str, Any]) -> None:
        filtered, quantity = found["results"][0], found["results"][2]
        assert filtered["recorded"][0]["scaled"] == pytest.approx(1000 * found["yardstick"]["ratio"])
        assert quantity["recorded"][0]["scaled"] == 1000
        assert quantity["ours"]["median"] == 3.0
        assert quantity["peers"][0]["ratio"] == 2.0

    @pytest.mark.usefixtures("tiny")
    def test_threads_are_restored(self) -> None:
        before = torch.get_num_threads()
        runner.run(runner.Options(only=["T2"], threads=(before + 1,)))
        assert torch.get_num_threads() == before

    def test_the_report_names_machine_versions_and_commit(self, found: dict[str, Any]) -> None:
        about = found["environment"]
        assert about["versions"]["torch"] == torch.__version__
        assert about["backend"] == dispatch.choose_backend("cpu").name
        assert about["cores"] >= 1
        assert {"processor", "commit", "date", "system"} <= set(about)

    @pytest.mark.usefixtures("tiny", "broken_backend")
    def test_a_red_operator_is_not_timed(self, capsys: pytest.CaptureFixture[str]) -> None:
        code = command.main(runner.Options(only=["T1"], repeats=1), None, None, [])
        assert code == 1
        printed = capsys.readouterr()
        assert "refused: T1: the learned convolution" in printed.err
        assert printed.out.splitlines()[1].split() == ["T1", "1", "refused"]

    @pytest.mark.usefixtures("tiny")
    def test_a_workload_that_fails_does_not_stop_the_others(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def fail(given: Inputs) -> Prepared:
            raise MemoryError("too large")

        workloads = (Workload("T0", "fails", "cpu", fail), *runner.ALL_WORKLOADS)
        monkeypatch.setattr(runner, "ALL_WORKLOADS", workloads)
        first, second = runner.run(runner.Options(only=["T0", "T2"]))["results"]
        assert first["refused"] == "failed with MemoryError: too large"
        assert second["ours"]["median"] == 3.0

    def test_a_device_that_is_not_here_is_named(self) -> None:
        if torch.cuda.is_available():
            pytest.skip("there is a GPU here")
        with pytest.raises(ph.BackendUnavailable, match="no GPU"):
            runner.run(runner.Options(device="cuda"))


class TestReport:
    def test_json_comes_back(self, found: dict[str, Any], tmp_path: Path) -> None:
        path = tmp_path / "new" / "report.json"
        report.write_json(found, path)
        assert json.loads(path.read_text()) == found

    def test_csv_has_a_row_for_every_contender(self, found: dict[str, Any], tmp_path: Path) -> None:
        path = tmp_path / "report.csv"
        report.write_csv(found, path)
        with path.open() as file:
            rows = list(csv.DictReader(file))
        kinds = [row["kind"] for row in rows if row["workload"] == "T1" and row["threads"] == "1"]
        assert kinds == ["ours", "measured", "recorded", "recorded", "absent"]
        assert float(rows[0]["median"]) == found["results"][0]["ours"]["median"]

    def test_the_table_shows_the_best_recorded_peer_and_remarks(self, found: dict[str, Any]) -> None:
        text = io.StringIO()
        report.print_table(found, text)
        assert "fast 100 ms" in text.getvalue()
        assert "slow 1000 ms" not in text.getvalue()
        assert "substitute image" in text.getvalue()
        assert "absent: nobody" in text.getvalue()

    def test_the_chart_is_drawn(self, found: dict[str, Any], tmp_path: Path) -> None:
        pytest.importorskip("matplotlib").use("Agg")
        paths = [tmp_path / "chart.svg", tmp_path / "chart.png"]
        chart.draw(found, paths)
        assert "T1" in paths[0].read_text()
        assert paths[1].stat().st_size > 1000

    def test_a_chart_needs_peers(self, found: dict[str, Any], tmp_path: Path) -> None:
        pytest.importorskip("matplotlib").use("Agg")
        for result in found["results"]:
            result["peers"], result["recorded"] = [], []
        with pytest.raises(ph.InputError, match="no peer"):
            chart.draw(found, [tmp_path / "chart.png"])


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the peak is read from /proc, which is Linux's")
def test_peak_memory_counts_what_is_freed_again() -> None:
    before = probes._reset_peak()
    block = np.ones(40_000_000, np.uint8)
    del block
    # the system counts pages in batches
    assert 39e6 <= probes._status("VmHWM") - before < 60e6


def test_import_time_is_measured_in_another_process() -> None:
    measured = probes.measure_import(Inputs(None, CPU), 1, 1, False)
    assert measured.samples[OURS][0] > 0


class TestCommandLine:
    @staticmethod
    def invoke(*arguments: str) -> Any:
        testing = pytest.importorskip("typer.testing")
        from permutohedral.cli import application

        return testing.CliRunner().invoke(application, ["benchmark", *arguments])

    def test_an_unknown_workload_is_an_error(self) -> None:
        result = self.invoke("--only", "W9")
        assert result.exit_code == 1
        assert "no workload 'W9'" in result.output

    def test_threads_are_numbers(self) -> None:
        result = self.invoke("--threads", "two")
        assert result.exit_code == 1
        assert "whole numbers" in result.output
        assert command.parse_threads("1,4") == (1, 4)

    @pytest.mark.usefixtures("tiny")
    def test_runs_without_the_extra_of_the_command_line(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        for name in ("typer", "rich", "rich.console"):
            monkeypatch.setitem(sys.modules, name, None)
        monkeypatch.setattr(sys, "argv", ["benchmarks", "--only", "T2", "--threads", "1"])
        assert plain_command.main() == 0
        assert "3 MB" in capsys.readouterr().out

    @pytest.mark.usefixtures("tiny")
    def test_files_are_written(self, tmp_path: Path) -> None:
        path = tmp_path / "report.json"
        result = self.invoke("--only", "T2", "--threads", "1", "--json", str(path), "--csv", str(tmp_path / "x.csv"))
        assert result.exit_code == 0, result.output
        assert "T2" in result.output
        assert json.loads(path.read_text())["options"]["only"] == ["T2"]
