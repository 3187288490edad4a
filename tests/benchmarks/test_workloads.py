"""The parts of the benchmarks: registry, data, exact truth, peers, refusal, timing."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from benchmark_support import prefer_broken_backend, small_problem

import permutohedral as ph
from permutohedral.benchmarks import inputs, peers, verify
from permutohedral.benchmarks.exact import ExactGaussian
from permutohedral.benchmarks.gpu_workloads import GPU_WORKLOADS
from permutohedral.benchmarks.inputs import FilterProblem, Inputs
from permutohedral.benchmarks.registry import Recorded, select
from permutohedral.benchmarks.timing import Absent, Contender, Timing, time_in_turn
from permutohedral.benchmarks.workloads import PROBLEMS, WORKLOADS, problem_of
from permutohedral.reporting.quality import relative_error

CPU = torch.device("cpu")
# two float32 filters with the same stencil; points near the face of a simplex may fall on either side
SAME_FILTER = 1e-3


@pytest.fixture(scope="module")
def problem() -> FilterProblem:
    return small_problem()


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
        image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
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
                assert relative_error(run_once(contender), ours) < SAME_FILTER

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

    def test_bilateral_grid_leaves_colors_out(self, problem: FilterProblem) -> None:
        pytest.importorskip("scipy", reason="scipy is not installed")
        absent = peers.bilateral_grid(problem, None)
        assert isinstance(absent, Absent)
        assert "gray images only" in absent.reason

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

    def test_a_wrong_operator_is_refused(self, problem: FilterProblem, monkeypatch: pytest.MonkeyPatch) -> None:
        prefer_broken_backend(monkeypatch)
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
