"""Time of a training step on one process and on two, with the same global batch: what the communication costs.

`python tools/reliability/measure_scaling.py` writes `results/reliability/scaling.json`; runs under torchrun.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]

BATCH, STEPS, WARM = 32, 25, 5


def train(output: Path) -> None:
    """A deep denoiser on crops of 64 pixels; rank 0 writes the median time of a step."""
    import pytorch_lightning as lightning
    import torch
    from torch import Tensor, nn
    from torch.utils.data import DataLoader, TensorDataset

    import permutohedral as ph
    from permutohedral.experiments.batches import StepBatches
    from permutohedral.experiments.training import RunOptions, Task, TrainingSettings, fit

    class Timed(lightning.Callback):
        """Ends of the steps."""

        def __init__(self) -> None:
            self.ends: list[float] = []

        def on_train_batch_end(self, *_: Any, **__: Any) -> None:
            self.ends.append(time.perf_counter())

    class Step(Task):
        """Mean squared error."""

        def training_step(self, batch: list[Tensor]) -> Tensor:
            noisy, clean = batch
            result: Tensor = (self.model(noisy) - clean).square().mean()
            return result

    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = nn.Sequential(ph.nn.BilateralConvolution2d(1, 16), nn.ReLU(), nn.Conv2d(16, 1, 3, padding=1))
    clean = torch.rand(BATCH, 1, 64, 64)
    data = TensorDataset(clean + 0.1 * torch.randn(clean.shape), clean)
    settings = TrainingSettings(steps=STEPS, batch_size=BATCH, optimizer="adam")
    timed = Timed()
    loader = DataLoader(data, batch_sampler=StepBatches(BATCH, STEPS, BATCH, 0))
    fit(
        Step(model, settings),
        loader,
        RunOptions(output, accelerator="cpu", progress=False),
        output / "c",
        callbacks=[timed],
    )
    steps = sorted(b - a for a, b in zip(timed.ends[WARM:], timed.ends[WARM + 1 :], strict=False))
    if os.environ.get("RANK", "0") == "0":
        weights = sum(parameter.numel() for parameter in model.parameters())
        found = {"seconds_per_step": steps[len(steps) // 2], "weights": weights}
        (output / "found.json").write_text(json.dumps(found))


def measure(processes: int) -> dict[str, Any]:
    """Run `train` under torchrun."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
        environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT / "src")}
        subprocess.run([*command, __file__, "train", folder], check=True, env=environment)
        found: dict[str, Any] = json.loads((Path(folder) / "found.json").read_text())
    return found


def main() -> None:
    """One process, then two."""
    one, two = measure(1), measure(2)
    result = {
        "command": "python tools/reliability/measure_scaling.py",
        "global_batch": BATCH,
        "cores": os.cpu_count(),
        "load_before": os.getloadavg()[0],
        "weights": one["weights"],
        "one_process": one["seconds_per_step"],
        "two_processes": two["seconds_per_step"],
        "speedup": round(one["seconds_per_step"] / two["seconds_per_step"], 2),
    }
    path = ROOT / "results" / "reliability" / "scaling.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result, indent=2) + "\n")
    print(result)


if __name__ == "__main__":
    if sys.argv[1:2] == ["train"]:
        train(Path(sys.argv[2]))
    else:
        main()
