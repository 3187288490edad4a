"""Report of a benchmark run: a table for the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from experiments.provenance import name_machine

_TITLES = ("workload", "threads", "ours", "quartiles", "error", "other", "time", "error", "ratio")


def format_table(report: dict[str, Any]) -> str:
    """Format the figures: ours, and the other contenders of the same run."""
    rows = [_TITLES, *(row for result in report["results"] for row in _rows(result))]
    return "\n".join([align(rows), "", *remarks(report)])


def align(rows: Sequence[Sequence[str]]) -> str:
    """Return the lines of a table, its columns padded to their widest cell."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)


def _rows(result: dict[str, Any]) -> list[tuple[str, ...]]:
    start = (result["workload"], str(result["threads"]))
    if "failed" in result:
        return [(*start, "failed", *[""] * 6)]
    ours, unit = result["ours"], result["unit"]
    kernels = f" (kernels {format_number(ours['kernels'])})" if "kernels" in ours else ""
    quartiles = " to ".join(map(format_number, ours["quartiles"]))
    first = (*start, f"{format_number(ours['median'])} {unit}{kernels}", quartiles, _error(ours["error"]))
    others = [
        (each["name"], f"{format_number(each['median'])} {unit}", _error(each["error"]), f"{each['ratio']:.2g}")
        for each in result["others"]
    ]
    starts = [first, *[("",) * len(first)] * len(others)]
    return [(*start, *other) for start, other in zip(starts, others or [("",) * 4], strict=False)]


def remarks(report: dict[str, Any]) -> list[str]:
    """Return the context of the figures: machine, substitutes, absent peers, other load."""
    about, results = report["environment"], report["results"]
    lines = [
        f"permutohedral {about['versions']['permutohedral']} ({about['backend']} backend), torch "
        f"{about['versions']['torch']}, {name_machine(about['hardware'])}; commit {about['commit']}",
    ]
    substitutes = {result["origin"] for result in results if "substitute" in result.get("origin", "")}
    lines += [f"input: {origin}" for origin in sorted(substitutes)]
    absent = {(peer["name"], peer["reason"]) for result in results for peer in result.get("absent", ())}
    lines += [f"absent: {name}, {reason}" for name, reason in sorted(absent) if "not installed" in reason]
    busy = [result["workload"] for result in results if result.get("other_cores", 0) > 0.1]
    if busy:
        lines.append(f"other processes kept more than 0.1 cores busy during {', '.join(dict.fromkeys(busy))}")
    lines += [f"failed: {each['workload']}: {each['failed']}" for each in results if "failed" in each]
    return lines


def format_number(value: float) -> str:
    """Format a figure with three digits."""
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def _error(value: float | None) -> str:
    return "" if value is None else f"{value:.2g}"
