"""Writes the measured parts of pages under docs from results/reliability: `make reliability`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))

import regions  # noqa: E402 (found once the folder is on the path)

RESULTS = ROOT / "results" / "reliability"

Row = tuple[str, str, str, str]


def read(name: str) -> dict[str, Any] | None:
    """A result, None if it was not measured."""
    path = RESULTS / f"{name}.json"
    found: dict[str, Any] | None = json.loads(path.read_text()) if path.is_file() else None
    return found


def fuzz_rows() -> list[Row]:
    """Random calls, and bytes guided by coverage."""
    rows: list[Row] = []
    kinds = {
        "fuzz-calls": "random calls, native against reference",
        "fuzz-interpreted": "random calls, Triton in its interpreter, native, reference",
    }
    for name, what in kinds.items():
        calls = read(name)
        if calls is not None:
            outcome = f"{len(calls['failed'])} of {len(calls['calls_by_test'])} tests failed"
            rows.append((what, f"{calls['calls']:,} calls", outcome, calls["command"]))
    inputs = read("fuzz-bytes")
    if inputs is not None:
        # 71 is how libFuzzer ends beyond its limit of memory
        known = {
            0: "nothing found",
            71: "no wrong result; ended at the memory limit of the fuzzer",
        }
        outcome = known.get(inputs["exit_code"], "something found")
        how = f"{inputs['inputs']:,} inputs in {inputs['seconds']} s, guided by {inputs['guided_by']}"
        rows.append(("bytes that become calls", how, outcome, inputs["command"]))
    programs = read("fuzz-fields")
    if programs is not None:
        marginals = programs["first_outcomes"]["marginals"]
        outcome = f"{marginals:,} with marginals, without NaN; the others met a ValueError or TypeError first"
        rows.append(("programs for pydensecrf", f"{programs['programs']:,} programs", outcome, programs["command"]))
    return rows


def sanitizer_rows() -> list[Row]:
    """Tests of the core under sanitizers."""
    rows: list[Row] = []
    for kind, title in (("address", "address and undefined behavior"), ("thread", "threads")):
        result = read(f"sanitizer-{kind}")
        if result is not None:
            how = f"{result['tests'].get('passed', 0)} tests passed, {result['tests'].get('failed', 0)} failed"
            if "instruction_sets" in result:
                how += f"; {', '.join(result['instruction_sets'])}; at {result['commit']}"
            rows.append(
                (f"native core under sanitizers: {title}", how, f"{result['reports']} reports", result["command"])
            )
    return rows


def memory_rows() -> list[Row]:
    """Leaks and peaks."""
    result = read("memory")
    if result is None:
        return []
    leak, ratios = result["leak"], [peak["ratio"] for peak in result["peaks"]]
    within = f"peak {min(ratios):.2f} to {max(ratios):.2f} of the forecast"
    growth = f"{leak['growth_per_call']:g} bytes per call"
    return [
        ("memory that is not given back", f"{leak['calls']:,} calls, forward and backward", growth, result["command"]),
        ("peak against `forecast_memory`", f"{len(ratios)} requests", within, result["command"]),
    ]


def large_rows() -> list[Row]:
    """More numbers than 32 bits can count."""
    result = read("large")
    if result is None:
        return []
    return [
        ("a result of more than 2^31 numbers", f"{result['elements']:,}", f"{result['wrong']} wrong", result["command"])
    ]


def kill_rows() -> list[Row]:
    """Trainings and commands that were killed."""
    rows: list[Row] = []
    for name, unit, what in (
        ("kills", "trainings", "SIGKILL at random moments, then --resume: {}"),
        ("killed-commands", "runs", "the same of `permutohedral reproduce {} --smoke`"),
    ):
        result = read(name) or {}
        for experiment in sorted(result.keys() - {"command"}):
            found = result[experiment]
            how = f"{found['kills']} kills in {found[unit]} {unit}"
            outcome = f"{found['different']} ended differently from an uninterrupted one"
            rows.append((what.format(experiment), how, outcome, result["command"]))
    return rows


def render_table() -> str:
    """All measured lines."""
    lines = ["| what | how often | what happened | command |", "| --- | --- | --- | --- |"]
    for row in [*fuzz_rows(), *sanitizer_rows(), *memory_rows(), *large_rows(), *kill_rows()]:
        what, often, happened, command = row
        lines.append(f"| {what} | {often} | {happened} | `{command}` |")
    return "\n".join(lines)


def render_peaks() -> str:
    """Every request, its peak and its forecast."""
    result = read("memory")
    lines = ["| points | d | filter | channels | lattice points | peak, MB | forecast, MB | ratio |"]
    lines.append("| ---: | ---: | --- | ---: | ---: | ---: | ---: | ---: |")
    for peak in (result or {"peaks": []})["peaks"]:
        kind = "Gaussian" if peak["size"] is None else f"s = {peak['size']}"
        megabytes = " | ".join(f"{peak[name] / 1e6:,.0f}" for name in ("peak", "forecast"))
        request = f"{peak['points']:,} | {peak['dimension']} | {kind} | {peak['channels']}"
        lines.append(f"| {request} | {peak['lattice_points']:,} | {megabytes} | {peak['ratio']:.2f} |")
    return "\n".join(lines)


def render_scaling() -> str:
    """One process against two."""
    result = read("scaling")
    if result is None:
        return ""
    one, two = result["one_process"] * 1000, result["two_processes"] * 1000
    return (
        f"One step of a small network (a bilateral and a spatial convolution, {result['weights']} weights) on a batch "
        f"of {result['global_batch']} crops of 64 x 64, one thread for each process, on {result['cores']} cores "
        f"with a load of {result['load_before']:.1f}: {one:.0f} ms on one process, {two:.0f} ms on two, "
        f"{result['speedup']:.2f} times as fast (`{result['command']}`)."
    )


def render_busy() -> str:
    """One thread against two, beside processes that keep the cores busy."""
    result = read("busy")
    if result is None:
        return ""
    lines = ["| call | busy processes | one thread, ms | two threads, ms | two / one |"]
    lines.append("| --- | ---: | ---: | ---: | ---: |")
    for row in result["rows"]:
        times = f"{row['ms']['1']:.0f} | {row['ms']['2']:.0f} | {row['ratio']:.2f}"
        lines.append(f"| `{row['call']}` | {row['busy']} | {times} |")
    where = f"Medians of {result['rounds']} calls, in turn, on {result['cores']} cores that had a load of "
    return "\n".join(lines) + f"\n\n{where}{result['load_before']:.1f} before (`{result['command']}`)."


def render_determinism() -> str:
    """What the deterministic mode costs on a GPU."""
    result = read("gpu")
    if result is None:
        return ""
    lines = ["| between events of the GPU | by default, ms | deterministic, ms | times | three runs |"]
    lines.append("| --- | ---: | ---: | ---: | --- |")
    for cost in result["costs"]:
        equal = "equal to the bit" if cost["equal"] else "different"
        times = f"{cost['default']:.2f} | {cost['deterministic']:.2f} | {cost['ratio']:.1f}"
        lines.append(f"| {cost['what']} | {times} | {equal} |")
    return "\n".join(lines) + "\n\n" + where_measured(result)


def render_gpu_peaks() -> str:
    """Peaks on a GPU, of a first call and of a second one with points of the same shape."""
    result = read("gpu")
    if result is None:
        return ""
    lines = ["| request | lattice points | first call, MB | second, MB | forecast, MB | larger of them / forecast |"]
    lines.append("| --- | ---: | ---: | ---: | ---: | ---: |")
    for peak in result["peaks"]:
        megabytes = " | ".join(f"{peak[name] / 1e6:,.0f}" for name in ("first", "second", "forecast"))
        lines.append(f"| {peak['what']} | {peak['lattice_points']:,} | {megabytes} | {peak['ratio']:.2f} |")
    return "\n".join(lines) + "\n\n" + where_measured(result)


def where_measured(result: dict[str, Any]) -> str:
    """Machine and commit."""
    about = result["environment"]
    return f"Measured on an {about['gpu']} at {about['commit'][:7]} (`{result['command']}`)."


def pages() -> dict[Path, str]:
    """The pages as they should be."""
    parts = {
        "reliability": render_table(),
        "reliability-peaks": render_peaks(),
        "reliability-scaling": render_scaling(),
        "reliability-busy": render_busy(),
        "reliability-determinism": render_determinism(),
        "reliability-gpu-peaks": render_gpu_peaks(),
    }
    names = ("reliability.md", "scaling.md", "determinism.md")
    return {ROOT / "docs" / name: regions.fill((ROOT / "docs" / name).read_text(), parts.get) for name in names}


if __name__ == "__main__":
    for path, content in pages().items():
        path.write_text(content)
