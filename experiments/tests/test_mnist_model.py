"""Classifiers of digits at scattered points, and the samples that they see."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from support import DEVICE, assert_close
from torch import Tensor, nn
from torch.nn import functional

from experiments.data.sample import SAMPLE
from experiments.experiment import run_row, run_rows_together
from experiments.mnist.model import LeNet, PermutohedralStem, SpatialStem, grid_positions, interpolate_to_grid
from experiments.mnist.run import Batches, choose, compare, half_interval
from experiments.mnist.sampling import Sampling
from experiments.mnist.stack import FirstLayer, StackedLeNet, read_taps
from experiments.registry import load_experiment
from experiments.results import Result, read_weights
from experiments.training import RunOptions
from permutohedral import permutohedral_filter

LAYERS: tuple[FirstLayer, ...] = ("lenet", "lenet_share", "pcnn_none", "pcnn_density", "pcnn_coverage")


def scattered(batch: int, samples: int) -> tuple[Tensor, Tensor]:
    positions = torch.rand(batch, samples, 2, device=DEVICE) * 27
    return torch.rand(batch, samples, 1, device=DEVICE), positions


def test_interpolation_weighs_bilinearly_and_leaves_holes() -> None:
    whole = torch.rand(2, 1, 28, 28, device=DEVICE)
    positions = grid_positions(device=DEVICE).expand(2, -1, -1)
    assert_close(interpolate_to_grid(whole.flatten(1)[..., None], positions), whole)
    values = torch.tensor([[[1.0], [3.0]]])
    image = interpolate_to_grid(values, torch.tensor([[[5.0, 5.25], [5.0, 5.75]]]))
    assert_close(image[0, 0, 5, 4:8], torch.tensor([0.0, 0.75 * 1 + 0.25 * 3, 0.25 * 1 + 0.75 * 3, 0.0]))
    assert image.count_nonzero() == 2


def separate(stack: StackedLeNet, place: int, layer: FirstLayer) -> LeNet:
    """Return one network of a stack, with the library's layer or a convolution as the first one."""
    stem: nn.Module = SpatialStem(20)
    if layer.startswith("pcnn"):
        stem = PermutohedralStem(20, normalization=layer.removeprefix("pcnn_"))  # type: ignore[arg-type]
    model = LeNet(stem).to(DEVICE)
    state = {name: parameter[place] for name, parameter in stack.named_parameters()}
    lattice_weight = state["first"][:, :19].T[:, None]
    spatial_weight = state["first"].reshape(20, 1, 5, 5)
    content = {
        "stem.convolution.weight": lattice_weight if layer.startswith("pcnn") else spatial_weight,
        "stem.convolution.bias": state["first_bias"],
        "convolution.weight": state["second"].reshape(50, 20, 5, 5),
        "convolution.bias": state["second_bias"],
    }
    for name in ("hidden", "classes"):
        content |= {f"{name}.weight": state[name], f"{name}.bias": state[f"{name}_bias"]}
    model.load_state_dict(content)
    return model


@pytest.mark.parametrize("samples", [784, 100])
def test_stacked_networks_are_lenets_with_other_first_layers(samples: int) -> None:
    values, positions = scattered(2, samples)
    stack = StackedLeNet(LAYERS, range(5)).to(DEVICE)
    for name, parameter in stack.named_parameters():
        if name.endswith("bias"):
            nn.init.normal_(parameter)
    scores = stack(read_taps(LAYERS, values, positions))
    for place, layer in enumerate(LAYERS):
        if layer != "lenet_share":
            assert_close(scores[place], separate(stack, place, layer)(values, positions))


def test_the_first_convolution_is_divided_by_the_occupied_share() -> None:
    values, positions = torch.full((1, 3, 1), 2.0), torch.tensor([[[5.0, 5.0], [5.0, 6.0], [25.0, 25.0]]])
    taps = read_taps(["lenet", "lenet_share"], values, positions)[:, 0].unflatten(1, (24, 24))
    # at pixel (5, 5), two of the 25 pixels of the window are occupied; at (12, 12) none; at (25, 25) one
    for place, occupied in (((3, 3), 2), ((23, 23), 1)):
        assert taps[0, *place].sum() == 2.0 * occupied
        assert_close(taps[1, *place], taps[0, *place] * 25 / occupied)
    assert not taps[:, 10, 10].any()


def test_other_ways_to_interpolate() -> None:
    values, positions = torch.tensor([[[1.0], [3.0]]]), torch.tensor([[[5.0, 5.25], [5.0, 5.75]]])
    taps = read_taps(["lenet_sum", "lenet_box", "lenet_nearest"], values, positions)[:, 0].unflatten(1, (24, 24))
    # the middle tap reads the pixel itself
    row = taps[:, 3, 2:6, 12]
    assert_close(row, torch.tensor([[0.0, 1.5, 2.5, 0.0], [0.0, 1.0, 3.0, 0.0], [1.0, 1.0, 3.0, 3.0]]))


def test_the_stem_is_the_filter_of_the_paper() -> None:
    stem = PermutohedralStem(5, neighborhood_size=1, scale=0.8, normalization="none").to(DEVICE)
    values, positions = scattered(2, 300)
    weight, bias = stem.convolution.weight, stem.convolution.bias
    assert bias is not None
    for item in range(2):
        expected = permutohedral_filter(values[item], positions[item] * 0.8, weight, grid_positions(2, DEVICE) * 0.8)
        image = stem(values, positions)[item]
        assert_close(image[:, 3, 7], expected[3 * 24 + 7] + bias)
    pixels = grid_positions(device=DEVICE).expand(2, -1, -1)
    values = torch.rand(2, 784, 1, device=DEVICE)
    for _ in range(2):
        assert_close(stem(values, None), stem(values, pixels))


def test_networks_of_a_seed_start_alike() -> None:
    stack = StackedLeNet(["lenet", "pcnn_none", "lenet"], [3, 3, 4])
    for name, parameter in stack.named_parameters():
        assert (parameter[0] == parameter[2]).all() == name.endswith("bias")
        if name != "first":
            assert (parameter[0] == parameter[1]).all()
    first = stack.get_parameter("first")
    assert_close(first[1, :, :19], first[0, :, :19] * math.sqrt(25 / 19))
    assert not first[1, :, 19:].any()


@pytest.mark.parametrize("kind", ["uniform", "clusters", "blocks", "foveated"])
def test_samples_depend_on_their_seed_alone(kind: str) -> None:
    images = torch.rand(6, 28, 28, device=DEVICE)
    sampling = Sampling(kind, 0.4)  # type: ignore[arg-type]
    values, positions = sampling.sample(images, [0, 1], "step 7")
    assert positions.shape == (6, 314, 2)
    assert 0 <= float(positions.min()) < 1 < 26 < float(positions.max()) <= 27
    assert_close(positions[3:], sampling.sample(images[3:], [1], "step 7")[1])
    assert_close(values[3:], sampling.sample(images[3:], [1], "step 7")[0])
    others = [sampling.sample(images[:3], [0], "step 8")[1], positions[3:]]
    assert all(not torch.isclose(positions[:3], other).any() for other in others)


def test_samples_are_denser_where_they_should_be() -> None:
    images = torch.zeros(64, 28, 28)
    positions = {
        kind: Sampling(kind, 0.4).sample(images, [0], "")[1] for kind in ("uniform", "clusters", "blocks", "foveated")
    }
    radius = (positions["foveated"] - 13.5).norm(dim=2)
    # the density falls as 1 / r, so circles of equal width have equally many samples
    assert abs(float((radius < 4).float().mean() / (radius < 8).float().mean()) - 0.5) < 0.02
    cells = {kind: _occupied_cells(each) for kind, each in positions.items()}
    assert cells["clusters"] < 0.85 * cells["uniform"]
    assert cells["blocks"] < 0.9 * cells["uniform"]


def _occupied_cells(positions: Tensor) -> float:
    """Return the mean number of squares of 3 x 3 pixels with samples."""
    cell = (positions / 3).floor().long()
    number = cell[..., 0] * 9 + cell[..., 1]
    return float(functional.one_hot(number.clamp_max(80), 81).any(dim=1).sum(dim=1).float().mean())


def test_batches_of_a_seed_do_not_depend_on_the_other_seeds() -> None:
    images, labels = torch.randint(256, (50, 28, 28), dtype=torch.uint8), torch.arange(50)
    both = Batches(images, labels, [0, 1], 8, Sampling("uniform", 0.2))
    alone = Batches(images, labels, [1], 8, Sampling("uniform", 0.2))
    for step in (0, 7, 2):
        values, positions, wanted = both(step)
        assert_close(values[8:], alone(step)[0])
        assert_close(positions[8:], alone(step)[1])
        assert (wanted[1:] == alone(step)[2]).all()
        assert (wanted[0] != wanted[1]).any()
    seen = torch.cat([both(step)[2][0] for step in range(6)])
    assert len(set(seen.tolist())) == 48


def test_networks_that_are_trained_together_are_those_trained_alone(tmp_path: Path) -> None:
    experiment = load_experiment("mnist")
    rows = experiment.choose_rows(["lenet_20", "pcnn_none_20"], smoke=True)
    rows = [replace(row, test_images=20, training=replace(row.training, steps=4)) for row in rows]
    configs = [replace(rows[0], seed=1), rows[1], rows[0]]
    together = RunOptions(tmp_path / "together", SAMPLE, "cpu")
    run_rows_together(experiment, configs, together)
    [weights] = map(read_weights, (together.output / "weights").iterdir())
    for place in (0, 1):
        alone = RunOptions(tmp_path / str(place), together.data, "cpu")
        run_row(experiment, configs[place], alone)
        [own] = map(read_weights, (alone.output / "weights").iterdir())
        for name, tensor in own.items():
            assert_close(tensor[0], weights[name][place])


def accuracies(row: str, split: str, *values: float) -> list[Result]:
    experiment = load_experiment("sampling")
    [config] = experiment.choose_rows([row])
    tests = {column: {"kind": each.kind, "share": each.share} for column, each in config.tests.items()}
    content = {"model": config.model, "tests": tests, "samples": tests["blocks"], "split": split}
    return [
        Result("sampling", row, content, {"accuracy": dict.fromkeys(tests, value)}, seed)
        for seed, value in enumerate(values)
    ]


def test_the_best_on_validation_digits_are_compared_by_seed() -> None:
    validation = [
        *accuracies("lenet_blocks", "validation", 0.5, 0.7),
        *accuracies("lenet_share_blocks", "validation", 0.6, 0.6),
        *accuracies("pcnn_none_blocks", "validation", 0.1, 0.2),
        *accuracies("pcnn_coverage_blocks", "validation", 0.3, 0.2),
    ]
    chosen = choose(validation)
    assert chosen == {"blocks": {"LeNet": "lenet_blocks", "PCNN": "pcnn_coverage_blocks"}}
    test = [
        *accuracies("lenet_blocks", "test", 0.5, 0.7, 0.6),
        *accuracies("lenet_share_blocks", "test", 0.9, 0.9, 0.9),
        *accuracies("pcnn_coverage_blocks", "test", 0.52, 0.72, 0.61),
    ]
    compared, count = compare(test, chosen)
    assert compared.lines["lenet_blocks"][:3] == ["blocks", "LeNet, as it is", "0.6000"]
    assert compared.lines["pcnn_coverage_blocks"][2] == "**0.6167**"
    half = 4.303 * 0.0057735 / math.sqrt(3)
    assert compared.lines["difference_blocks"][2] == f"+0.0167 ± {half:.4f}"
    assert half_interval([0.02, 0.02, 0.01]) == pytest.approx(half, rel=1e-4)
    assert count.lines["count"] == ["4", "0", "0"]
