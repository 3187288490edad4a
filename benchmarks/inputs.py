"""Data of the workloads: named and seeded, made once per run, the same for every contender."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

import permutohedral as ph
from experiments.data.bsds500 import read_pixels
from permutohedral.errors import InputError

PHOTO = "41096.jpg"


@dataclass(frozen=True)
class FilterProblem:
    """Values at points, to be filtered with the Gaussian of one feature unit.

    Attributes:
        features: float32 `[points, d]`, in standard deviations.
        values: float32 `[points, channels]`.
        origin: where the data comes from, in words.
        image: float32 `[channels, height, width]` if the problem is the bilateral filter of an image, else None.
        sigmas: standard deviations over positions in pixels and over colors, of that bilateral filter.
    """

    features: Tensor
    values: Tensor
    origin: str
    image: Tensor | None = None
    sigmas: tuple[float, float] = (1.0, 1.0)

    def variants(self) -> list[FilterProblem]:
        """Return the problem and two mirror images of it, so that inputs change from call to call."""
        if self.image is not None:
            flipped = (self.image.flip(axis) for axis in (1, 2))
            return [self, *(bilateral_problem(image, self.sigmas, self.origin) for image in flipped)]
        signs = torch.ones(2, self.features.shape[1], device=self.features.device)
        signs[0, 0] = signs[1, -1] = -1
        return [self, *(replace(self, features=self.features * sign) for sign in signs)]

    def to(self, device: torch.device) -> FilterProblem:
        """Return the same problem on `device`."""
        image = None if self.image is None else self.image.to(device)
        return replace(self, features=self.features.to(device), values=self.values.to(device), image=image)


class Inputs:
    """The data of the workloads, made at their first use and shared.

    Args:
        data: folder that holds `bsds500/{train,val,test}`, or None; without the photo a picture that comes with
            scikit-image takes its place, and without that an artificial one. The problem's `origin` says which.
        device: where the tensors go.
    """

    def __init__(self, data: Path | None, device: torch.device) -> None:
        self.data, self.device = data, device
        self._kept: dict[str, list[FilterProblem]] = {}
        self._photo: tuple[Tensor, str] | None = None

    def keep(self, name: str, make: Callable[[Inputs], FilterProblem]) -> list[FilterProblem]:
        """Return the variants of the problem `name`, made at its first use."""
        if name not in self._kept:
            self._kept[name] = make(self).to(self.device).variants()
        return self._kept[name]

    def photographs(self, extents: Sequence[tuple[int, ...]]) -> list[Tensor]:
        """Return different photographs of BSDS500 `[3, height, width]` in 0..1, of these sizes."""
        paths = [] if self.data is None else sorted((self.data / "bsds500").rglob("*.jpg"))
        if len(paths) < len(extents):
            raise InputError(f"data: bsds500 has {len(paths)} photographs, {len(extents)} are needed; pass --data")
        chosen = paths[:: len(paths) // len(extents)]
        photographs = [torch.from_numpy(read_pixels(path)) for path in chosen]
        return [_resize(_crop(photo, *size), *size) for photo, size in zip(photographs, extents, strict=False)]

    @property
    def photo(self) -> tuple[Tensor, str]:
        """A photo uint8 `[321, 481, 3]` and its origin."""
        if self._photo is None:
            self._photo = _load_photo(self.data)
        return self._photo


def _load_photo(data: Path | None) -> tuple[Tensor, str]:
    for part in ("test", "val", "train"):
        path = None if data is None else data / "bsds500" / part / PHOTO
        if path is not None and path.is_file():
            return torch.from_numpy(read_pixels(path)), f"photo {PHOTO} of BSDS500"
    why = f"substitute, {PHOTO} of BSDS500 not given with --data"
    try:
        from skimage import data as pictures
    except ImportError:
        pixels = (synthetic_image(321, 481) * 255).round().to(torch.uint8).permute(1, 2, 0)
        return pixels, f"artificial image ({why}, scikit-image not installed)"
    return torch.from_numpy(np.array(pictures.astronaut()[:321, :481])), f"picture 'astronaut' of scikit-image ({why})"


def synthetic_image(height: int, width: int) -> Tensor:
    """Return sums of sinusoids with noise of 0.02, float32 `[3, height, width]` within 0..1."""
    generator = torch.Generator().manual_seed(0)
    y = torch.linspace(0, 1, height)[:, None]
    x = torch.linspace(0, 1, width)[None, :]
    waves = torch.rand(3, 6, 3, generator=generator)
    image = torch.zeros(3, height, width)
    for channel, terms in enumerate(waves):
        for vertical, horizontal, phase in terms.tolist():
            image[channel] += torch.sin(2 * torch.pi * (8 * vertical * y + 8 * horizontal * x + phase))
    image = 0.5 + image / 12
    return (image + 0.02 * torch.randn(image.shape, generator=generator)).clamp_(0, 1)


def bilateral_problem(image: Tensor, sigmas: tuple[float, float], origin: str) -> FilterProblem:
    """Return the bilateral filter of `image [channels, height, width]` as a problem over points."""
    features = ph.features.bilateral(image, sigma_space=sigmas[0], sigma_color=sigmas[1]).contiguous()
    values = image.flatten(1).t().contiguous()
    return FilterProblem(features, values, origin, image, sigmas)


def large_photo(inputs: Inputs, sigmas: tuple[float, float], side: int = 1024) -> FilterProblem:
    """Return the middle square of the photo, resized to `side` x `side` pixels."""
    pixels, origin = inputs.photo
    return bilateral_problem(_resize(_crop(pixels, side, side), side, side), sigmas, origin)


def color_photo(inputs: Inputs) -> Tensor:
    """Return the photo at its own size, `[3, 321, 481]`."""
    return inputs.photo[0].permute(2, 0, 1).float() / 255


def gray_photo(inputs: Inputs) -> FilterProblem:
    """Return the photo in gray at its own size, bandwidths 4 pixels and 0.1."""
    pixels, origin = inputs.photo
    gray = (pixels.float() / 255) @ torch.tensor([0.299, 0.587, 0.114])
    return bilateral_problem(gray[None], (4.0, 0.1), origin)


def labeled_photo(inputs: Inputs) -> FilterProblem:
    """Return 21 label probabilities on the photo at 375 x 500 pixels, bandwidths 80 pixels and 13/255."""
    pixels, origin = inputs.photo
    problem = bilateral_problem(_resize(pixels, 375, 500), (80.0, 13 / 255), origin)
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(problem.features.shape[0], 21, generator=generator)
    # the values are not the image, so the filters of images do not apply
    return replace(problem, values=scores.softmax(dim=1), image=None, origin=f"{origin}, seeded label probabilities")


def _crop(pixels: Tensor, height: int, width: int) -> Tensor:
    """Return the middle square of a photo `[h, w, 3]` for square sizes, else all of it."""
    if height != width:
        return pixels
    side = min(pixels.shape[:2])
    top, left = (pixels.shape[0] - side) // 2, (pixels.shape[1] - side) // 2
    return pixels[top : top + side, left : left + side]


def _resize(pixels: Tensor, height: int, width: int) -> Tensor:
    """Convert uint8 `[h, w, 3]` to float32 `[3, height, width]` within 0..1."""
    from PIL import Image

    resized = Image.fromarray(pixels.numpy()).resize((width, height), Image.Resampling.LANCZOS)
    return torch.from_numpy(np.array(resized)).permute(2, 0, 1).float() / 255


def sphere_points(num_points: int = 1_000_000, scale: float = 76.16) -> Tensor:
    """Return points near a sphere of radius `scale`, noise of 0.5 % along the radius: `[points, 3]`."""
    generator = torch.Generator().manual_seed(0)
    direction = torch.nn.functional.normalize(torch.randn(num_points, 3, generator=generator), dim=1)
    radius = 1 + 0.005 * torch.randn(num_points, 1, generator=generator)
    return direction * radius * scale


def sphere(inputs: Inputs) -> FilterProblem:
    """Return a million points near a sphere with 32 smooth functions of position; 250,000 lattice points."""
    features = sphere_points()
    generator = torch.Generator().manual_seed(1)
    frequency = torch.randn(3, 32, generator=generator) / 10
    phase = 2 * torch.pi * torch.rand(32, generator=generator)
    values = torch.sin(features @ frequency + phase)
    return FilterProblem(features, values, "seeded points near a sphere, smooth functions of position")
