"""The drop-in for permutohedral_encoding: recorded results, state, and the bugs of upstream that it lacks."""

from __future__ import annotations

import pickle
from pathlib import Path

import encoding_oracle
import numpy as np
import torch
from support import assert_close, to_numpy

import permutohedral.compat.permutohedral_encoding as permuto_enc

# written once by the original
RECORDED = np.load(Path(__file__).parent / "permutohedral_encoding.npz")
SCALES = np.geomspace(1.0, 0.1, 3)


def make(**options: bool) -> permuto_enc.PermutoEncoding:
    return permuto_enc.PermutoEncoding(3, 128, 3, 2, SCALES, dtype=torch.float64, init_scale=1.0, **options)


def test_state_is_that_of_upstream() -> None:
    layer, positions = make(), torch.rand(20, 3, dtype=torch.float64)
    state = {"lattice_values": torch.randn(3, 128, 2), "random_shift_per_level": 10 * torch.randn(3, 3)}
    assert {name: each.shape for name, each in layer.state_dict().items()} == {
        name: each.shape for name, each in state.items()
    }
    layer.load_state_dict(state)
    shifts = state["random_shift_per_level"].double().numpy()
    sigmas = np.repeat(SCALES[:, None], 3, axis=1)
    expected = encoding_oracle.encode(positions.numpy(), to_numpy(layer.lattice_values), sigmas, shifts)
    assert np.abs(to_numpy(layer(positions)) - expected).max() < 1e-12
    assert [name for name, _ in layer.named_parameters()] == ["lattice_values"]
    copied = pickle.loads(pickle.dumps(layer))
    assert torch.equal(copied(positions), layer(positions))


def test_concatenates_points_with_their_gradient() -> None:
    layer = permuto_enc.PermutoEncoding(3, 64, 2, 2, [1.0, 0.5], concat_points=True, concat_points_scaling=0.5)
    positions = torch.rand(7, 3, requires_grad=True)
    features = layer(positions, torch.zeros(2))
    assert features.shape == (7, layer.output_dims()) == (7, 8)
    assert_close(features, torch.nn.functional.pad(torch.cat([torch.zeros(7, 4), positions / 2], dim=1), (0, 1)))
    features.sum().backward()
    assert positions.grad is not None
    assert_close(positions.grad, torch.full((7, 3), 0.5))


def test_takes_no_shift() -> None:
    for spelling in ("appply_random_shift_per_level", "apply_random_shift_per_level"):
        assert not make(**{spelling: False}).random_shift_per_level.any()
    assert bool(make().random_shift_per_level.any())


def test_coarse_to_fine() -> None:
    window = permuto_enc.Coarse2Fine(4)
    assert_close(window(0.6), (1 - np.cos(np.pi * np.clip(0.6 * 4 - np.arange(4), 0, 1))) / 2)
    assert window.get_last_t() == 0.6


def test_maps_numbers_between_ranges() -> None:
    """As examples/train_toy_example.py of upstream calls it, to anneal levels."""
    found = [permuto_enc.map_range_val(step, 10, 30, 0.3, 1.0) for step in (0, 10, 20, 30, 99)]
    np.testing.assert_allclose(found, [0.3, 0.3, 0.65, 1.0, 1.0])


def test_recorded_results_of_upstream() -> None:
    """Features of 24 levels down to a sigma of 1e-4, to the rounding of positions plus shifts in float32."""
    scales = np.geomspace(1.0, 1e-4, 24)
    layer = permuto_enc.PermutoEncoding(3, 2**12, 24, 2, scales)
    table = torch.zeros(24, 2**12, 2)
    level, row = torch.from_numpy(RECORDED["rows"]).long().T
    table[level, row] = torch.from_numpy(RECORDED["values"])
    layer.load_state_dict({"lattice_values": table, "random_shift_per_level": torch.from_numpy(RECORDED["shifts"])})
    positions = torch.from_numpy(RECORDED["positions"]).requires_grad_()
    features = layer(positions)
    error = np.abs(to_numpy(features) - RECORDED["features"]).reshape(-1, 24, 2).max(axis=(0, 2))
    reach = 1 + np.abs(RECORDED["shifts"]).max(axis=1)
    assert (error <= np.finfo(np.float32).eps * reach / scales * np.abs(RECORDED["values"]).max()).all()
    features.sum().backward()
    assert positions.grad is not None
    assert_close(positions.grad, RECORDED["gradient"])
