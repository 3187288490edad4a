"""The tables of docs/crf.md, from the figures under results/crf."""

from __future__ import annotations

import json
from pathlib import Path

from permutohedral.reporting.markdown import markdown_table

RESULTS = Path(__file__).resolve().parents[1] / "results" / "crf"


def speed() -> str:
    """A mean field beside pydensecrf2, on one and two threads and on a GPU."""
    one, two, gpu = (
        json.loads((RESULTS / f"speed-{name}.json").read_text())["rows"] for name in ("cpu", "cpu-2-threads", "h200")
    )
    rows = [
        [
            name,
            f"{1e3 * found['pydensecrf']:.0f}",
            *(f"{1e3 * each['permutohedral']:.0f} ({each['ratio']:.1f}x)" for each in (found, two[name])),
            f"{1e3 * gpu[name]['permutohedral']:.1f}",
        ]
        for name, found in one.items()
    ]
    return markdown_table(["ms, lattices included", "pydensecrf2", "ours, 1 thread", "2 threads", "H200"], rows)


def backward() -> str:
    """A mean field with its gradients beside one without, on one and two threads and on a GPU."""
    one, two, gpu = (
        json.loads((RESULTS / f"backward-{name}.json").read_text())["rows"] for name in ("cpu", "cpu-2-threads", "h200")
    )
    rows = [
        [
            name,
            *(f"{1e3 * found[way]:.0f}" for way in ("forward", "both")),
            *(f"{each['ratio']:.1f}" for each in (found, two[name])),
            *(f"{1e3 * gpu[name][way]:.1f}" for way in ("forward", "both")),
            f"{gpu[name]['ratio']:.1f}",
        ]
        for name, found in one.items()
    ]
    titles = ["ms, 1 thread", "forward", "with gradients", "ratio", "ratio, 2 threads"]
    return markdown_table([*titles, "H200, forward", "with gradients", "ratio"], rows)
