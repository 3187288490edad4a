"""A report as JSON, as CSV and as a short table."""

from __future__ import annotations

import csv
import json
import textwrap
from pathlib import Path
from typing import IO, Any

from permutohedral.reporting.atomic import replacing

COLUMNS = (
    "workload", "device", "threads", "kind", "name", "version", "unit", "median", "low", "high", "repetitions",
    "error", "ratio", "note",
)  # fmt: skip


def write_json(report: dict[str, Any], path: Path) -> None:
    """Everything that was found out."""
    with replacing(path) as partial:
        partial.write_text(json.dumps(report, indent=1) + "\n")


def write_csv(report: dict[str, Any], path: Path) -> None:
    """One row for every contender of every workload: ours, measured, recorded, absent or refused."""
    with replacing(path) as partial, partial.open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, restval="", lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows_of(report))


def rows_of(report: dict[str, Any]) -> list[dict[str, Any]]:
    """The report flattened, one dictionary of `COLUMNS` for each contender."""
    rows = []
    for result in report["results"]:
        base = {key: result[key] for key in ("workload", "device", "threads", "unit")}
        if "refused" in result:
            rows.append({**base, "kind": "refused", "name": "permutohedral", "note": result["refused"]})
            continue
        for kind, entries in (("ours", [result["ours"]]), ("measured", result["peers"])):
            for entry in entries:
                low, high = entry["quartiles"]
                row = {key: entry.get(key) for key in COLUMNS if entry.get(key) is not None}
                rows.append({**base, "kind": kind, **row, "low": low, "high": high})
        for entry in result["recorded"]:
            note = f"recorded elsewhere as {entry['value']:g}, scaled to this machine"
            scaled = {"name": entry["name"], "median": entry["scaled"], "ratio": entry["ratio"], "note": note}
            rows.append({**base, "kind": "recorded", **scaled})
        rows += [{**base, "kind": "absent", "name": peer["name"], "note": peer["reason"]} for peer in result["absent"]]
    return rows


_TITLES = (
    "workload", "threads", "ours", "error", "peer, same run", "time", "error", "times ours", "best recorded peer",
    "times ours",
)  # fmt: skip
_TEXT_COLUMNS = (0, 4, 8)


def print_table(report: dict[str, Any], file: IO[str], columns: int | None = None) -> None:
    """The figures side by side: ours, the peers of the same run, the best recorded peer.

    Args:
        report: of a run.
        file: where to print.
        columns: of the terminal; where the table is wider, rows are broken and lines wrapped. None for no limit.
    """
    rows = [_TITLES, *(row for result in report["results"] for row in _table_rows(result))]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    if columns is not None and sum(widths) + 2 * (len(widths) - 1) > columns:
        # ours and the best recorded peer in a line of their own, the peers of the same run below
        lines = [line for row in rows[1:] for line in _broken(row, widths)]
    else:
        lines = ["  ".join(_aligned(row, widths)).rstrip() for row in rows]
    for line in lines:
        print(line, file=file)
    print(file=file)
    for line in remarks(report):
        print(line if columns is None else textwrap.fill(line, columns, subsequent_indent="  "), file=file)


def _aligned(row: tuple[str, ...], widths: list[int]) -> list[str]:
    return [
        cell.ljust(width) if column in _TEXT_COLUMNS else cell.rjust(width)
        for column, (cell, width) in enumerate(zip(row, widths, strict=True))
    ]


def _broken(row: tuple[str, ...], widths: list[int]) -> list[str]:
    """A row of the table in lines of at most 80 columns."""
    lines = []
    if row[0]:
        error = f", error {row[3]}" if row[3] else ""
        lines.append(f"{row[0]}, {row[1]} thread{'s' * (row[1] != '1')}: {row[2]}{error}")
        if row[8]:
            lines.append(f"    {row[9]} times ours: {row[8]}, recorded elsewhere")
    if row[4]:
        cells = _aligned(row, widths)
        lines.append(f"    {cells[4]}  {cells[5]}  {cells[6]}  {row[7]} times ours")
    return lines


def _table_rows(result: dict[str, Any]) -> list[tuple[str, ...]]:
    start = (result["workload"], str(result["threads"]))
    if "refused" in result:
        return [(*start, "refused", *[""] * 7)]
    ours, unit = result["ours"], result["unit"]
    # between events a GPU also waits for the host
    kernels = f" (kernels {_number(ours['kernels'])})" if "kernels" in ours else ""
    first: tuple[str, ...] = (*start, f"{_number(ours['median'])} {unit}{kernels}", _error(ours["error"]))
    recorded = min(result["recorded"], key=lambda entry: float(entry["value"]), default=None)
    last = ("", "") if recorded is None else (
        f"{recorded['name']} {_number(recorded['value'])} {unit}", f"{recorded['ratio']:.1f}",
    )  # fmt: skip
    rows = []
    for peer in result["peers"] or [None]:
        middle = ("", "", "", "") if peer is None else (
            peer["name"], f"{_number(peer['median'])} {unit}", _error(peer["error"]), f"{peer['ratio']:.2g}",
        )  # fmt: skip
        rows.append((*first, *middle, *last))
        first, last = ("",) * len(first), ("", "")
    return rows


def remarks(report: dict[str, Any]) -> list[str]:
    """What a reader of the figures must know: machine, yardstick, substitutes, absent peers, a busy machine."""
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
        names = ", ".join(dict.fromkeys(busy))
        lines.append(f"other processes kept more than 0.1 cores busy, so these times are too long: {names}")
    return lines


def _number(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def _error(value: float | None) -> str:
    return "" if value is None else f"{value:.2g}"
