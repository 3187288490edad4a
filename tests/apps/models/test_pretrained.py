from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from permutohedral.apps.models import pretrained
from permutohedral.apps.models.deep_denoising import DeepDenoiser
from permutohedral.apps.models.denoising import CombinedDenoiser, PermutohedralDenoiser
from permutohedral.apps.models.pretrained import (
    Entry,
    build_denoiser,
    choose_model,
    load_pretrained,
    save_pretrained,
    shipped_models,
)
from permutohedral.errors import InputError


def test_every_shipped_model_covers_every_noise_level() -> None:
    models = shipped_models()
    assert set(models) == {"pcnn_cnn", "pcnn", "pcnn_gauss", "cnn", "deep_small"}
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


def test_loads_the_nearest_noise_level() -> None:
    assert load_pretrained("cnn", 1000.0)[1] == max(shipped_models()["cnn"])
    assert load_pretrained("cnn", 0.1)[1] == min(shipped_models()["cnn"])


def test_auto_avoids_deep_networks_for_little_noise() -> None:
    assert choose_model("auto", 2.5) == choose_model() == "deep_small"
    assert choose_model("auto", 2.4) == "pcnn_cnn"
    assert choose_model("pcnn", 1.0) == "pcnn"
    assert isinstance(load_pretrained("auto", 50.0)[0], DeepDenoiser)
    assert [load_pretrained("deep_small", noise)[1] for noise in (2.5, 9.0, 15.0, 18.0)] == [5.0, 11.0, 11.0, 25.0]
    with pytest.raises(InputError, match=r"at least 2\.5 of 255.*pass auto"):
        load_pretrained("deep_small", 2.0)


def test_rejects_unknown_names() -> None:
    with pytest.raises(InputError, match=r"model must be one of .*pcnn_cnn.*got 'x'"):
        load_pretrained("x")
    with pytest.raises(InputError, match=r"kind must be one of .*combined.*got 'x'"):
        build_denoiser("x", {})
    with pytest.raises(InputError, match="positive"):
        load_pretrained(noise=0.0)


def test_weights_survive_their_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = CombinedDenoiser(sigma_space=3.0, sigma_color=0.5)
    nn.init.normal_(model.spatial.weight)
    entries = [
        (Entry("a", "combined", {"sigma_space": 3.0, "sigma_color": 0.5}, 30.0), model),
        (Entry("a", "permutohedral", {}, 60.0), PermutohedralDenoiser()),
    ]
    save_pretrained(entries, tmp_path / "weights.safetensors")
    monkeypatch.setattr(pretrained, "_shipped_file", lambda: tmp_path / "weights.safetensors")
    assert shipped_models() == {"a": [30.0, 60.0]}
    loaded, _ = load_pretrained("a", 29.0)
    assert isinstance(loaded, CombinedDenoiser)
    assert torch.equal(loaded.spatial.weight, model.spatial.weight)
    assert loaded.permutohedral.sigma_space == 3.0
