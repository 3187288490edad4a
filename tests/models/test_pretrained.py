from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch

from permutohedral.errors import InputError
from permutohedral.experiments.denoising.run import DenoisingConfig
from permutohedral.experiments.denoising.ship import DEEP_ROWS, add_deep
from permutohedral.experiments.result import Result, read_weights, write_result, write_weights
from permutohedral.models import pretrained
from permutohedral.models.deep_denoising import DeepDenoiser
from permutohedral.models.denoising import CombinedDenoiser, PermutohedralDenoiser
from permutohedral.models.pretrained import (
    Entry,
    build_denoiser,
    choose_model,
    load_pretrained,
    save_pretrained,
    shipped_models,
)


def test_every_shipped_model_serves_every_level_of_noise() -> None:
    models = shipped_models()
    assert set(models) == {"pcnn_cnn", "pcnn", "pcnn_gauss", "cnn", "deep_small", "deep_large"}
    assert len({tuple(noises) for name, noises in models.items() if not name.startswith("deep")}) == 1
    for name, noises in models.items():
        for noise in noises:
            model, trained_for = load_pretrained(name, noise)
            assert trained_for == noise
            flat = 0.5 + noise / 255 * torch.randn(1, 1, 64, 64)
            denoised = model(flat).detach()
            assert abs(float(denoised.mean() - flat.mean())) < 0.05 * noise / 255
            # one 5x5 filter can take little of little noise
            assert float(denoised.std()) < (0.9 if name == "cnn" else 0.4) * noise / 255


def test_the_nearest_level_of_noise_is_taken() -> None:
    assert load_pretrained("cnn", 1000.0)[1] == max(shipped_models()["cnn"])
    assert load_pretrained("cnn", 0.1)[1] == min(shipped_models()["cnn"])


def test_a_deep_network_is_left_out_where_there_is_too_little_noise_for_it() -> None:
    assert choose_model("auto", 12.5) == choose_model() == "deep_small"
    assert choose_model("auto", 12.4) == "pcnn_cnn"
    assert choose_model("pcnn", 1.0) == "pcnn"
    assert isinstance(load_pretrained("auto", 50.0)[0], DeepDenoiser)
    with pytest.raises(InputError, match=r"at least 12\.5 of 255.*take auto"):
        load_pretrained("deep_large", 9.0)


def test_deep_rows_take_their_place_in_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options: dict[str, Any] = {"channels": [4], "blocks": [1], "permutohedral_blocks": [0]}
    path = tmp_path / "weights.safetensors"
    save_pretrained([(Entry("a", "permutohedral", {}, 60.0), PermutohedralDenoiser())], path)
    for name in DEEP_ROWS:
        config = DenoisingConfig(name, name, "deep", options, noise=40.0)
        write_result(Result("denoising", name, asdict(config), {}, 0), tmp_path / f"{name}.json")
        write_weights(tmp_path / f"{name}.safetensors", DeepDenoiser(**options))
    add_deep(tmp_path, path)
    # a second time they are replaced
    add_deep(tmp_path, path)
    monkeypatch.setattr(pretrained, "_shipped_file", lambda: path)
    assert shipped_models() == {"a": [60.0], "deep_small": [40.0], "deep_large": [40.0]}
    expected = read_weights(tmp_path / "deep_large.safetensors")
    assert all(torch.equal(load_pretrained("deep_large")[0].state_dict()[name], expected[name]) for name in expected)


def test_unknown_names_are_told_with_those_that_exist() -> None:
    with pytest.raises(InputError, match=r"no model 'x'; there are .*pcnn_cnn"):
        load_pretrained("x")
    with pytest.raises(InputError, match=r"no denoiser 'x'; there are .*combined"):
        build_denoiser("x", {})
    with pytest.raises(InputError, match="positive"):
        load_pretrained(noise=0.0)


def test_weights_survive_their_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = CombinedDenoiser(sigma_space=3.0, sigma_range=0.5)
    model.set_weights(torch.randn(90))
    entries = [
        (Entry("a", "combined", {"sigma_space": 3.0, "sigma_range": 0.5}, 30.0), model),
        (Entry("a", "permutohedral", {}, 60.0), PermutohedralDenoiser()),
    ]
    save_pretrained(entries, tmp_path / "weights.safetensors")
    monkeypatch.setattr(pretrained, "_shipped_file", lambda: tmp_path / "weights.safetensors")
    assert shipped_models() == {"a": [30.0, 60.0]}
    loaded, _ = load_pretrained("a", 29.0)
    assert isinstance(loaded, CombinedDenoiser)
    assert torch.equal(loaded.weights(), model.weights())
    assert loaded.permutohedral.sigma_space == 3.0
