"""Shipped denoisers, trained for several noise levels."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from permutohedral.apps.models.deep_denoising import DeepDenoiser
from permutohedral.apps.models.denoising import CombinedDenoiser, PermutohedralDenoiser, SpatialDenoiser
from permutohedral.errors import InputError

_MODELS: dict[str, type[nn.Module]] = {
    "identity": nn.Identity,
    "spatial": SpatialDenoiser,
    "permutohedral": PermutohedralDenoiser,
    "combined": CombinedDenoiser,
    "deep": DeepDenoiser,
}

DEFAULT_MODEL = "auto"
# a deep network is used for at least this share of the noise it was trained for: below, scaled images have stronger
# contrasts than its training images
_MIN_SHARE = 0.5
_AUTO = ("deep_small", "pcnn_cnn")


@dataclass(frozen=True)
class Entry:
    """One trained model; kind and options of `build_denoiser`, and the noise in training, white is 255."""

    name: str
    kind: str
    options: dict[str, Any]
    noise: float

    @property
    def prefix(self) -> str:
        """Prefix of the names of its tensors."""
        return f"{self.name}/{self.noise:g}/"


def build_denoiser(kind: str, options: dict[str, Any]) -> nn.Module:
    """Build an untrained denoiser of one of the kinds in `_MODELS`; options are arguments of its class.

    >>> build_denoiser("spatial", {"size": 3}).weight.numel()
    9
    """
    if kind not in _MODELS:
        raise InputError(f"kind must be one of {', '.join(_MODELS)}, got {kind!r}")
    try:
        return _MODELS[kind](**options)
    except TypeError as error:
        raise InputError(f"options do not fit the model {kind}: {error}") from error


def shipped_models() -> dict[str, list[float]]:
    """Return the noise levels of each shipped model; white is 255.

    >>> 25.0 in shipped_models()["pcnn_cnn"]
    True
    """
    models: dict[str, list[float]] = {}
    for entry in _entries(_shipped_file()):
        models.setdefault(entry.name, []).append(entry.noise)
    return models


def choose_model(name: str = DEFAULT_MODEL, noise: float = 25.0) -> str:
    """Return the model for this noise: "auto" is "deep_small", or "pcnn_cnn" for little noise.

    >>> choose_model("auto", noise=25.0), choose_model("auto", noise=2.0)
    ('deep_small', 'pcnn_cnn')
    """
    if not noise > 0:
        raise InputError(f"noise must be positive, got {noise}")
    least: dict[str, float] = {}
    for entry in _entries(_shipped_file()):
        if entry.kind == "deep":
            least[entry.name] = min(_MIN_SHARE * entry.noise, least.get(entry.name, math.inf))
    if name == "auto":
        return next(each for each in _AUTO if noise >= least.get(each, 0.0))
    if name not in shipped_models():
        raise InputError(f"model must be one of auto, {', '.join(shipped_models())}, got {name!r}")
    if noise < least.get(name, 0.0):
        raise InputError(
            f"model {name} needs noise of at least {least[name]:g} of 255, and {math.sqrt(3):.2g} times that in color; "
            "pass auto or pcnn_cnn"
        )
    return name


def load_pretrained(name: str = DEFAULT_MODEL, noise: float = 25.0) -> tuple[nn.Module, float]:
    """Load the shipped denoiser of the nearest noise level, white is 255; return it and that level.

    >>> model, trained_for = load_pretrained("pcnn_cnn", noise=24.0)
    >>> trained_for
    25.0
    """
    path, name = _shipped_file(), choose_model(name, noise)
    entries = [entry for entry in _entries(path) if entry.name == name]
    entry = min(entries, key=lambda candidate: abs(math.log(candidate.noise / noise)))
    return _load(entry, path), entry.noise


def open_weights(path: str | Path) -> Any:
    """Open a file of weights as a context manager; name the extra if it is missing."""
    try:
        from safetensors import safe_open
    except ModuleNotFoundError as error:
        error.add_note("pretrained networks need an extra: pip install 'permutohedral[images]'")
        raise
    return safe_open(path, "pt")


def _load(entry: Entry, path: Path) -> nn.Module:
    with torch.device("cpu"):
        model = build_denoiser(entry.kind, entry.options)
    with open_weights(path) as file:
        state = {name: file.get_tensor(entry.prefix + name) for name in model.state_dict()}
    # the tensors of the file, whatever the default dtype
    model.load_state_dict(state, assign=True)
    return model.eval()


def read_pretrained(path: Path | None = None) -> list[tuple[Entry, nn.Module]]:
    """Load all models of a file of weights, by default the shipped file."""
    path = _shipped_file() if path is None else path
    return [(entry, _load(entry, path)) for entry in _entries(path)]


def save_pretrained(models: list[tuple[Entry, nn.Module]], path: Path) -> None:
    """Write models to one file of weights."""
    from safetensors.torch import save_file

    tensors: dict[str, Tensor] = {}
    for entry, model in models:
        for name, tensor in model.state_dict().items():
            tensors[entry.prefix + name] = tensor.detach().cpu().contiguous()
    entries = [{"name": e.name, "kind": e.kind, "options": e.options, "noise": e.noise} for e, _ in models]
    save_file(tensors, path, metadata={"entries": json.dumps(entries)})


def _shipped_file() -> Path:
    return Path(__file__).resolve().parent / "weights" / "denoising.safetensors"


def _entries(path: Path) -> list[Entry]:
    with open_weights(path) as file:
        return [Entry(**entry) for entry in json.loads(file.metadata()["entries"])]
