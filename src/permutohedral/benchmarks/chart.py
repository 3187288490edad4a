"""The report as a picture: how many times as long as ours each peer takes."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

from permutohedral.errors import InputError
from permutohedral.reporting.provenance import name_machine

_COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#f0e442", "#5d3a9b")
_RECORDED_COLOR = "#9a9a9a"
_BAR = 0.8


def draw(report: dict[str, Any], paths: list[Path]) -> None:
    """Bars of ratios on a logarithmic axis, one panel for each number of threads, into every path."""
    from matplotlib.figure import Figure
    from matplotlib.patches import Rectangle

    from permutohedral.reporting.figure import save_figure

    panels = sorted({result["threads"] for result in report["results"]})
    groups = {threads: _bars(report, threads) for threads in panels}
    names = list(dict.fromkeys(name for bars in groups.values() for name in bars))
    if not names:
        raise InputError("there is no peer to draw a chart of; run with --peers or other workloads")
    most = {name: max(len(bars.get(name, [])) for bars in groups.values()) for name in names}
    peers = list(dict.fromkeys(bar[0] for bars in groups.values() for some in bars.values() for bar in some if bar[2]))
    colors = {peer: _COLORS[index % len(_COLORS)] for index, peer in enumerate(peers)}
    height = 1.8 + 0.26 * sum(most.values()) + 0.12 * len(names)
    figure = Figure(figsize=(4.9 * len(panels) + 2.4, height))
    axes = figure.subplots(1, len(panels), sharey=True, squeeze=False)
    widest = max(bar[1] for bars in groups.values() for some in bars.values() for bar in some)
    for axis, threads in zip(axes[0], panels, strict=True):
        _draw_panel(axis, groups[threads], most, colors)
        axis.set_yticks(axis.get_yticks(), [_label(report, name) for name in most], fontsize=7.5)
        axis.set_xlim(min(0.3, _smallest(groups) / 1.5), widest * 3)
        many = "on the GPU" if report["environment"]["gpu"] else f"ours with {threads} thread{'s' * (threads != 1)}"
        axis.set_title(many, fontsize=10)
        axis.set_xlabel("time (or memory) of the peer / ours", fontsize=9)
    handles = [Rectangle((0, 0), 1, 1, color=color) for color in colors.values()]
    handles.append(Rectangle((0, 0), 1, 1, facecolor="white", edgecolor=_RECORDED_COLOR, hatch="////"))
    labels = [*colors, "best recorded peer, other machine"]
    machine = name_machine(report["environment"])
    figure.suptitle(f"permutohedral beside its peers: right of the line we need less\n{machine}", fontsize=11)
    figure.legend(handles, labels, loc="lower center", ncols=min(3, len(labels)), fontsize=8, frameon=False)
    figure.tight_layout(rect=(0, 0.3 * (1 + (len(labels) - 1) // 3) / height, 1, 1))
    save_figure(figure, paths, dpi=150, margin=0.1)


def _label(report: dict[str, Any], name: str) -> str:
    """Name and summary of a workload, in short lines."""
    summary = next(result["summary"] for result in report["results"] if result["workload"] == name)
    return textwrap.fill(f"{name}: {summary}", 42)


# name of the peer, ratio, whether it was measured in this run
_Bar = tuple[str, float, bool]


def _bars(report: dict[str, Any], threads: int) -> dict[str, list[_Bar]]:
    """The bars of each workload that has any: peers of the run, then the best recorded one."""
    bars: dict[str, list[_Bar]] = {}
    for result in report["results"]:
        if result["threads"] != threads or "refused" in result:
            continue
        some = [(peer["name"], float(peer["ratio"]), True) for peer in result["peers"]]
        best = min(result["recorded"], key=lambda entry: float(entry["value"]), default=None)
        if best is not None:
            some.append((best["name"], float(best["ratio"]), False))
        if some:
            bars[result["workload"]] = some
    return bars


def _smallest(groups: dict[int, dict[str, list[_Bar]]]) -> float:
    return min(bar[1] for bars in groups.values() for some in bars.values() for bar in some)


def _draw_panel(axis: Any, bars: dict[str, list[_Bar]], most: dict[str, int], colors: dict[str, str]) -> None:
    ticks, top = [], 0.0
    for name, slots in most.items():
        ticks.append(top + (slots - 1) / 2)
        for slot, (peer, ratio, measured) in enumerate(bars.get(name, [])):
            style = {"color": colors[peer]} if measured else {
                "facecolor": "white", "edgecolor": _RECORDED_COLOR, "hatch": "////",
            }  # fmt: skip
            axis.barh(top + slot, ratio - 1, left=1, height=_BAR, **style)
            label = f" {ratio:.2g}" if measured else f" {ratio:.2g} {peer}"
            # beyond the end of the bar, or beside the line if the bar lies left of it
            axis.text(max(ratio, 1.0), top + slot, label, va="center", fontsize=7)
        top += slots + 0.5
    axis.set_xscale("log")
    axis.xaxis.set_major_formatter(lambda value, position: f"{value:g}")
    axis.axvline(1, color="black", linewidth=0.8)
    axis.set_yticks(ticks)
    axis.set_ylim(top - 0.5, -1)
    axis.tick_params(axis="x", labelsize=8)
    for side in ("top", "right"):
        axis.spines[side].set_visible(False)
