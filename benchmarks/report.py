"""Reports of benchmark runs: a table for the terminal, and a chart."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

from permutohedral.errors import InputError

_TITLES = ("workload", "threads", "ours", "error", "peer", "time", "error", "ratio", "best recorded peer", "ratio")


def format_table(report: dict[str, Any]) -> str:
    """Format the figures: ours, the peers of the same run, and the best recorded peer."""
    rows = [_TITLES, *(row for result in report["results"] for row in _rows(result))]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join([*lines, "", *remarks(report)])


def _rows(result: dict[str, Any]) -> list[tuple[str, ...]]:
    start = (result["workload"], str(result["threads"]))
    if "failed" in result:
        return [(*start, "failed", *[""] * 7)]
    ours, unit = result["ours"], result["unit"]
    kernels = f" (kernels {_number(ours['kernels'])})" if "kernels" in ours else ""
    first: tuple[str, ...] = (*start, f"{_number(ours['median'])} {unit}{kernels}", _error(ours["error"]))
    best = min(result["recorded"], key=lambda entry: float(entry["value"]), default=None)
    last = ("", "") if best is None else (f"{best['name']} {_number(best['value'])} {unit}", f"{best['ratio']:.1f}")
    rows = []
    for peer in result["peers"] or [None]:
        middle: tuple[str, ...] = ("", "", "", "")
        if peer is not None:
            middle = (peer["name"], f"{_number(peer['median'])} {unit}", _error(peer["error"]), f"{peer['ratio']:.2g}")
        rows.append((*first, *middle, *last))
        first, last = ("",) * len(first), ("", "")
    return rows


def remarks(report: dict[str, Any]) -> list[str]:
    """Return the context of the figures: machine, yardstick, substitutes, absent peers, other load."""
    about, yardstick = report["environment"], report["yardstick"]
    where = about["gpu"] or f"{about['processor']}, {about['cores']} cores"
    lines = [
        f"permutohedral {about['versions']['permutohedral']} ({about['backend']} backend), torch "
        f"{about['versions']['torch']}, {where}; commit {about['commit'] or 'unknown'}",
        f"recorded peers: measured once on {yardstick['recorded_machine']} and scaled by "
        f"{yardstick['slowness']:.2f}, the ratio of {yardstick['slowness_by']} (sort of 6 M keys: "
        f"{yardstick['seconds']:.3g} s here, {yardstick['recorded_seconds']:g} s there)",
    ]
    substitutes = {result["origin"] for result in report["results"] if "substitute" in result.get("origin", "")}
    lines += [f"input: {origin}" for origin in sorted(substitutes)]
    absent = {(peer["name"], peer["reason"]) for result in report["results"] for peer in result.get("absent", ())}
    lines += [f"absent: {name}, {reason}" for name, reason in sorted(absent) if "not installed" in reason]
    busy = [result["workload"] for result in report["results"] if (result.get("other_cores") or 0) > 0.1]
    if busy:
        lines.append(f"other processes kept more than 0.1 cores busy during {', '.join(dict.fromkeys(busy))}")
    lines += [f"failed: {each['workload']}: {each['failed']}" for each in report["results"] if "failed" in each]
    return lines


def _number(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def _error(value: float | None) -> str:
    return "" if value is None else f"{value:.2g}"


_COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#f0e442", "#5d3a9b")
_RECORDED = "best recorded peer, other machine"


def draw_chart(report: dict[str, Any], path: Path) -> None:
    """Draw the ratios of peers to ours on a logarithmic axis, one panel for each number of threads."""
    from matplotlib.figure import Figure

    bars = [bar for result in report["results"] for bar in _bars(result)]
    if not bars:
        raise InputError("chart: no workload of this run has a peer; run with peers or other workloads")
    panels = sorted({threads for threads, *_ in bars})
    labels = list(dict.fromkeys(label for _, label, *_ in bars))
    peers = list(dict.fromkeys(peer for _, _, peer, _ in bars))
    colors = dict(zip([peer for peer in peers if peer != _RECORDED], _COLORS, strict=False)) | {_RECORDED: "#bbbbbb"}
    figure = Figure(figsize=(4.9 * len(panels) + 2.4, 1.5 + 0.62 * len(labels)), layout="constrained")
    axes = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    height = 0.8 / len(peers)
    for axis, threads in zip(axes, panels, strict=True):
        for own, label, peer, ratio in bars:
            if own == threads:
                y = labels.index(label) + (peers.index(peer) - (len(peers) - 1) / 2) * height
                axis.barh(y, ratio - 1, left=1, height=height, color=colors[peer])
                axis.text(max(ratio, 1.0), y, f" {ratio:.2g}", va="center", fontsize=7)
        axis.set_xscale("log")
        axis.set_xlim(left=0.3, right=2.5 * max(ratio for *_, ratio in bars))
        axis.xaxis.set_major_formatter(lambda value, position: f"{value:g}")
        axis.axvline(1, color="black", linewidth=0.8)
        axis.set_yticks(range(len(labels)), labels, fontsize=7.5)
        axis.set_title(
            "on the GPU" if report["environment"]["gpu"] else f"ours with {threads} thread{'s' * (threads > 1)}",
            fontsize=10,
        )
        axis.set_xlabel("time (or memory) of the peer / ours", fontsize=9)
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].invert_yaxis()
    handles = [axes[0].barh(0, 0, color=color) for color in (colors[peer] for peer in peers)]
    figure.legend(handles, peers, loc="outside lower center", ncols=min(3, len(peers)), fontsize=8, frameon=False)
    figure.suptitle("Time of other libraries relative to permutohedral: right of the line we are faster", fontsize=11)
    figure.savefig(path, dpi=150)


def _bars(result: dict[str, Any]) -> list[tuple[int, str, str, float]]:
    """Return threads, label, peer and ratio of each bar of a result."""
    if "failed" in result:
        return []
    label = textwrap.fill(f"{result['workload']}: {result['summary']}", 42)
    found = [
        (result["threads"], label, peer["name"], float(peer["ratio"])) for peer in result["peers"] if peer["same_task"]
    ]
    if result["recorded"]:
        best = min(float(entry["ratio"]) for entry in result["recorded"])
        found.append((result["threads"], label, _RECORDED, best))
    return found
