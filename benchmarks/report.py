"""Report of a benchmark run: a table for the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from experiments.provenance import name_machine

_TITLES = ("workload", "threads", "ours", "error", "peer", "time", "error", "ratio", "best recorded peer", "ratio")


def format_table(report: dict[str, Any]) -> str:
    """Format the figures: ours, the peers of the same run, and the best recorded peer."""
    rows = [_TITLES, *(row for result in report["results"] for row in _rows(result))]
    return "\n".join([align(rows), "", *remarks(report)])


def align(rows: Sequence[Sequence[str]]) -> str:
    """Return the lines of a table, its columns padded to their widest cell."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)


def _rows(result: dict[str, Any]) -> list[tuple[str, ...]]:
    start = (result["workload"], str(result["threads"]))
    if "failed" in result:
        return [(*start, "failed", *[""] * 7)]
    ours, unit = result["ours"], result["unit"]
    kernels = f" (kernels {format_number(ours['kernels'])})" if "kernels" in ours else ""
    first: tuple[str, ...] = (*start, f"{format_number(ours['median'])} {unit}{kernels}", _error(ours["error"]))
    best = min(result["recorded"], key=lambda entry: float(entry["value"]), default=None)
    last = (
        ("", "") if best is None else (f"{best['name']} {format_number(best['value'])} {unit}", f"{best['ratio']:.1f}")
    )
    rows = []
    for peer in result["peers"] or [None]:
        middle: tuple[str, ...] = ("", "", "", "")
        if peer is not None:
            middle = (
                peer["name"],
                f"{format_number(peer['median'])} {unit}",
                _error(peer["error"]),
                f"{peer['ratio']:.2g}",
            )
        rows.append((*first, *middle, *last))
        first, last = ("",) * len(first), ("", "")
    return rows


def remarks(report: dict[str, Any]) -> list[str]:
    """Return the context of the figures: machine, scale of recorded figures, substitutes, absent peers, other load."""
    about, recorded_on, results = report["environment"], report["recorded_on"], report["results"]
    slowness = recorded_on["slowness"]
    scale = "not scaled, without pydensecrf2" if slowness is None else f"scaled by {slowness:.2f} (pydensecrf2)"
    lines = [
        f"permutohedral {about['versions']['permutohedral']} ({about['backend']} backend), torch "
        f"{about['versions']['torch']}, {name_machine(about['hardware'])}; commit {about['commit']}",
        f"recorded peers: measured once on {recorded_on['machine']}; {scale}",
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
