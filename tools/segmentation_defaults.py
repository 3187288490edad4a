"""How often `permutohedral segment` harms: writes results/segmentation.json.

Run as `python tools/segmentation_defaults.py FOLDER [PHOTOGRAPHS]`, with the folder that holds the GrabCut database.
The true foreground of its photographs is made rough in three ways, and the command's field makes it follow the edges.
"""

from __future__ import annotations

import json
import statistics
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d, max_pool2d

import permutohedral as ph
from permutohedral.data.grabcut import Photograph, load_photographs
from permutohedral.experiments.grabcut.run import measure
from permutohedral.experiments.result import describe_environment, write_text
from permutohedral.pictures.field_settings import FieldSettings
from permutohedral.pictures.segment import follow_edges

ROOT = Path(__file__).resolve().parents[1]
OUTPUT = ROOT / "results" / "segmentation.json"

CHANGES: tuple[dict[str, Any], ...] = (
    {},
    {"strength": 1.0},
    {"strength": 16.0},
    {"strength": 40.0},
    {"sigma_range": 0.01},
    {"sigma_range": 0.1},
    {"sigma_range": 0.3},
    {"sigma_space": 5.0},
    {"sigma_space": 30.0},
    {"sigma_space": 80.0},
    {"smoothness": 0.0},
    {"smoothness": 5.0},
)


def blocks(truth: Tensor) -> Tensor:
    """The majority in blocks of 16 pixels, as networks of low resolution give it."""
    height, width = truth.shape
    coarse = avg_pool2d(truth[None].float(), 16, ceil_mode=True)[0] > 0.5
    return coarse.repeat_interleave(16, dim=0).repeat_interleave(16, dim=1)[:height, :width]


def grown(truth: Tensor) -> Tensor:
    """8 pixels more on every side."""
    return max_pool2d(truth[None].float(), 17, stride=1, padding=8)[0] > 0


def shrunk(truth: Tensor) -> Tensor:
    """8 pixels less on every side."""
    return ~grown(~truth)


ROUGH = {"blocks of 16 pixels": blocks, "8 pixels too large": grown, "8 pixels too small": shrunk}


def errors(photo: Photograph, labels: Tensor, settings: FieldSettings) -> float:
    """The share of wrong pixels after the field."""
    pixels = photo.pixels.permute(2, 0, 1).float() / 255
    energies = ph.crf.energies_from_labels(labels.long(), 2, settings.certainty)
    found = follow_edges(energies, pixels, settings).argmax(dim=0).bool()
    return measure(photo, found)["wrong"]


def main(folder: str, limit: int | None) -> None:
    """Measure and write."""
    photographs, rows = load_photographs("lasso", folder, limit), []
    for kind, rough in ROUGH.items():
        labels = [rough(photo.truth) for photo in photographs]
        before = [measure(photo, label)["wrong"] for photo, label in zip(photographs, labels, strict=True)]
        for changes in CHANGES:
            settings = replace(FieldSettings(), **changes)
            after = [errors(photo, label, settings) for photo, label in zip(photographs, labels, strict=True)]
            row = {
                "labels": kind,
                "changes": changes,
                "wrong_before": round(statistics.mean(before), 5),
                "wrong_after": round(statistics.mean(after), 5),
                "harmed": sum(new > old for new, old in zip(after, before, strict=True)),
            }
            print(json.dumps(row), file=sys.stderr)
            rows.append(row)
    result = {
        "command": f"python tools/segmentation_defaults.py FOLDER {limit or ''}".strip(),
        "photographs": len(photographs),
        "defaults": asdict(FieldSettings()),
        "rows": rows,
        "environment": describe_environment(torch.device("cpu")),
    }
    write_text(OUTPUT, json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else None)
