"""Layers under DistributedDataParallel: two processes with different numbers of points train as one does."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn
from torch.multiprocessing.spawn import spawn
from torch.nn.parallel import DistributedDataParallel

import permutohedral as ph

PROCESSES, STEPS = 2, 3
POINTS = (300, 170)


class Network(nn.Module):
    """Layers on points, on a lattice, and with learned bandwidths."""

    def __init__(self) -> None:
        super().__init__()
        self.enter = ph.nn.PermutohedralConv(2, 4, 3, learn_sigma=True)
        self.inside = ph.nn.LatticeConv(4, 4, 3)
        self.normalize = ph.nn.LatticeGroupNorm(2, 4)
        self.leave = nn.Linear(4, 1)

    def forward(self, values: Tensor, features: Tensor) -> Tensor:
        lattice = ph.build_lattice(features)
        rows = self.normalize(self.inside(ph.splat(self.enter(values, features), lattice), lattice), lattice)
        result: Tensor = self.leave(ph.slice(rows, lattice))
        return result


def draw_points(step: int, process: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(10 * step + process)
    points = POINTS[process]
    return torch.rand(points, 2, generator=generator).double(), 5 * torch.rand(points, 3, generator=generator).double()


def loss_of(network: nn.Module, step: int, process: int) -> Tensor:
    values, features = draw_points(step, process)
    result: Tensor = (network(values, features) - features.sum(dim=1, keepdim=True).sin()).square().mean()
    return result


def make_network() -> Network:
    torch.manual_seed(0)
    return Network().double()


def train_part(process: int, folder: Path) -> None:
    """Train in one of the processes, and write its parameters."""
    network = make_network()
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{folder / 'meeting'}", rank=process, world_size=PROCESSES
    )
    parallel = DistributedDataParallel(network)
    optimizer = torch.optim.SGD(parallel.parameters(), lr=0.1, momentum=0.9)
    for step in range(STEPS):
        optimizer.zero_grad()
        loss_of(parallel, step, process).backward()
        optimizer.step()
    torch.save(network.state_dict(), folder / f"{process}.pt")
    torch.distributed.destroy_process_group()


def test_trains_as_in_one_process(tmp_path: Path) -> None:
    spawn(train_part, (tmp_path,), nprocs=PROCESSES)
    network = make_network()
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9)
    for step in range(STEPS):
        optimizer.zero_grad()
        losses = [loss_of(network, step, process) for process in range(PROCESSES)]
        (sum(losses, torch.zeros(())) / PROCESSES).backward()
        optimizer.step()
    for process in range(PROCESSES):
        for name, trained in torch.load(tmp_path / f"{process}.pt").items():
            torch.testing.assert_close(trained, network.get_parameter(name), rtol=1e-10, atol=1e-12)
