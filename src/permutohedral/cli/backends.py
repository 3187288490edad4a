"""The command `permutohedral backends`."""

from __future__ import annotations

import json
from typing import Any

import typer

from permutohedral.cli.shared import Json, handle_errors
from permutohedral.version import __version__


def backends(as_json: Json = False) -> None:
    """List the backends that run here, with reasons.

    Needs the extra cli.

    Example: permutohedral backends --json
    """
    with handle_errors():
        report = _describe_backends()
        if as_json:
            typer.echo(json.dumps(report, indent=2))
            return
        threads = f"{report['threads']} thread{'s' * (report['threads'] != 1)}"
        typer.echo(f"permutohedral {report['version']}, torch {report['torch']}, {threads}")
        for device, choices in report["devices"].items():
            typer.echo(f"\n{device}")
            for choice in choices:
                verdict = "chosen" if choice["chosen"] else choice["reason"] or "runs here, not chosen"
                typer.echo(f"  {choice['name']:<10} {verdict}")


def _describe_backends() -> dict[str, Any]:
    import torch

    from permutohedral.ops.dispatch import all_backends, choose_backend

    present = ["cpu"] + ["cuda"] * torch.cuda.is_available()
    devices = {}
    for device in present:
        chosen = choose_backend(device).name
        devices[device] = [
            {"name": backend.name, "chosen": backend.name == chosen, "reason": backend.blocker(device)}
            for backend in all_backends()
        ]
    return {
        "version": __version__,
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "devices": devices,
    }
