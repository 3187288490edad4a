"""The benchmarks from the options to the files: one report, refusals, the table, the chart, the command."""

from __future__ import annotations

import copy
import csv
import io
import json
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from benchmark_support import prefer_broken_backend, small_problem

import permutohedral as ph
from permutohedral.benchmarks import chart, command, environment, probes, report, runner, verify
from permutohedral.benchmarks.exact import ExactGaussian
from permutohedral.benchmarks.inputs import FilterProblem, Inputs
from permutohedral.benchmarks.registry import OURS, Measured, Prepared, Recorded, Workload
from permutohedral.benchmarks.timing import Absent, Contender
from permutohedral.errors import InputError
from permutohedral.ops import dispatch

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def problem() -> FilterProblem:
    return small_problem()


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
        assert filtered["recorded"][0]["scaled"] == pytest.approx(1000 * found["yardstick"]["slowness"])
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

    @pytest.mark.usefixtures("tiny")
    def test_a_red_operator_is_not_timed(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        prefer_broken_backend(monkeypatch)
        code = command.main(runner.Options(only=["T1"], repeats=1), None, None, [])
        assert code == 1
        printed = capsys.readouterr()
        assert "refused: T1: the learned convolution" in printed.err
        assert printed.out.splitlines()[1].split() == ["T1", "1", "refused"]

    @pytest.mark.usefixtures("tiny")
    def test_a_chart_of_no_format_is_found_out_before_the_work(self, capsys: pytest.CaptureFixture[str]) -> None:
        with pytest.raises(InputError, match="its ending must be one of"):
            command.main(runner.Options(only=["T1"], repeats=1), None, None, [Path("chart.zzz")])
        assert capsys.readouterr().out == ""

    @pytest.mark.usefixtures("tiny")
    def test_a_workload_that_fails_does_not_stop_the_others(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def fail(given: Inputs) -> Prepared:
            raise MemoryError("too large")

        workloads = (Workload("T0", "fails", "cpu", fail), *runner.ALL_WORKLOADS)
        monkeypatch.setattr(runner, "ALL_WORKLOADS", workloads)
        first, second = runner.run(runner.Options(only=["T0", "T2"]))["results"]
        assert first["refused"] == "failed with MemoryError: too large"
        assert second["ours"]["median"] == 3.0

    def test_an_interruption_keeps_what_was_measured(self, tiny: None, monkeypatch: pytest.MonkeyPatch) -> None:
        def interrupt(given: Inputs) -> Prepared:
            raise KeyboardInterrupt

        first, second = runner.ALL_WORKLOADS
        workloads = (second, Workload("T0", "is interrupted", "cpu", interrupt), first)
        monkeypatch.setattr(runner, "ALL_WORKLOADS", workloads)
        said: list[str] = []
        found = runner.run(runner.Options(), said.append)
        assert [result["workload"] for result in found["results"]] == ["T2"]
        assert any("interrupted" in message and "T0" in message for message in said)

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

    def test_a_narrow_terminal_gets_narrow_lines(self, found: dict[str, Any]) -> None:
        text = io.StringIO()
        report.print_table(found, text, columns=80)
        assert "fast 100 ms, recorded elsewhere" in text.getvalue()
        assert max(map(len, text.getvalue().splitlines())) <= 80

    def test_the_chart_is_drawn(self, found: dict[str, Any], tmp_path: Path) -> None:
        pytest.importorskip("matplotlib", reason="matplotlib is not installed").use("Agg")
        paths = [tmp_path / "chart.svg", tmp_path / "chart.png"]
        chart.draw(found, paths)
        assert "T1" in paths[0].read_text()
        assert paths[1].stat().st_size > 1000

    def test_a_chart_needs_peers(self, found: dict[str, Any], tmp_path: Path) -> None:
        pytest.importorskip("matplotlib", reason="matplotlib is not installed").use("Agg")
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
        testing = pytest.importorskip("typer.testing", reason="typer is not installed")
        from permutohedral.cli.application import application

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
    def test_files_are_written(self, tmp_path: Path) -> None:
        path = tmp_path / "report.json"
        result = self.invoke("--only", "T2", "--threads", "1", "--json", str(path), "--csv", str(tmp_path / "x.csv"))
        assert result.exit_code == 0, result.output
        assert "T2" in result.output
        assert json.loads(path.read_text())["options"]["only"] == ["T2"]
