"""The Python and the command line that do the same as the page."""

from __future__ import annotations

import shlex
from dataclasses import dataclass

from permutohedral.pictures import TILE
from permutohedral.pictures.field_settings import FieldSettings
from permutohedral.playground.settings import DenoiseSettings, FilterSettings, LatticeSettings, UpsampleSettings


@dataclass(frozen=True)
class Code:
    """Text to copy.

    Attributes:
        python: a whole program.
        command: one line for a shell.
    """

    python: str
    command: str


_FILES = "from permutohedral.pictures.files import read_picture, write_picture"


def _path(name: str) -> str:
    plain = name.isprintable() and '"' not in name and "\\" not in name
    return f'Path("{name}")' if plain else f"Path({name!r})"


def _command(name: str, *files: str, **options: object) -> str:
    """A command line with the options that are not None; floats as they are written in Python.

    >>> print(_command("filter", "-x.png", "smooth.png", halo=1))
    permutohedral filter ./-x.png smooth.png --halo 1
    """
    # a name that begins with a dash would be taken for an option
    written = [name, *(f"./{file}" if file.startswith("-") else file for file in files)]
    for option, value in options.items():
        if value is not None:
            written += ["--" + option.replace("_", "-"), str(value)]
    return shlex.join(["permutohedral", *written])


def filter_code(
    settings: FilterSettings, photo: str, guide: str | None, pixels: int, transparent: bool = False
) -> Code:
    """Of a filtered photo of so many pixels.

    >>> print(filter_code(FilterSettings(4.0), "photo.png", None, 100).command)
    permutohedral filter photo.png smooth.png --sigma-space 4.0 --sigma-range 0.1
    """
    edges = guide if settings.guided else None
    given = "" if edges is None else f"\nguide = read_picture({_path(edges)}).pixels"
    if edges is None and transparent:
        given = "\nguide = hide_colors(photo.pixels, photo.alpha)"
    values = "values" if transparent else "photo.pixels"
    options = "" if settings.method == "separable" else f', method="{settings.method}"'
    options += "" if settings.halo == 0 else f", halo={settings.halo}"
    sigmas = f"{settings.sigma_space}, {settings.sigma_range}"
    if pixels <= TILE * TILE:
        imported, guided = "import permutohedral as ph\n" + _FILES, ", guide=guide" if given else ""
        call = f"ph.bilateral_filter({values}, {sigmas}{guided}{options})"
    else:
        imported = f"{_FILES}\nfrom permutohedral.pictures.tiles import filter_in_tiles"
        call = f"filter_in_tiles({values}, {'guide' if given else 'photo.pixels'}, {sigmas}{options})"
    if transparent:
        names = "filter_by_alpha" if edges is not None else "filter_by_alpha, hide_colors"
        imported += f"\nfrom permutohedral.pictures.transparency import {names}"
        call = f"filter_by_alpha(photo.pixels, photo.alpha, lambda values: {call})"
    python = (
        f"from pathlib import Path\n\n{imported}\n\nphoto = read_picture({_path(photo)}){given}\n"
        f'smooth = {call}\nwrite_picture(photo.with_pixels(smooth), Path("smooth.png"))\n'
    )
    command = _command(
        *("filter", photo, "smooth.png"),
        guide=edges,
        sigma_space=settings.sigma_space,
        sigma_range=settings.sigma_range,
        method=None if settings.method == "separable" else settings.method,
        halo=settings.halo or None,
    )
    return Code(python, command)


def denoise_code(settings: DenoiseSettings, photo: str, transparent: bool = False) -> Code:
    """Of a denoised photo; noise that the page added first is added in Python, and lies in a file for the command."""
    source, noisy = photo, ""
    if settings.added > 0:
        source = "noisy.png"
        noisy = (
            "noise = torch.randn(photo.pixels.shape, generator=torch.Generator().manual_seed(0))\n"
            f"noisy = (photo.pixels + {settings.added} / 255 * noise).clamp(0, 1)\n"
            "# as the file holds it\n"
            "noisy = (noisy * photo.levels).round() / photo.levels\n"
        )
    pixels = given = "noisy" if noisy else "photo.pixels"
    imported, hidden = "", ""
    if transparent:
        given, noisy = "filled", noisy + f"filled = fill_hidden({pixels}, photo.alpha)\n"
        imported = "\nfrom permutohedral.pictures.transparency import fill_hidden"
        hidden = f"clean = torch.where(photo.alpha > 0, clean, {pixels})\n"
    level = f"{settings.sigma} / 255"
    estimated = ""
    if settings.sigma is None:
        level, estimated = f"estimate_noise({given})", "\nfrom permutohedral.models.noise_level import estimate_noise"
    removed = "sigma" if settings.strength == 1 else f"{settings.strength} * sigma"
    torch = "import torch\n\n" if noisy else ""
    python = (
        f"from pathlib import Path\n\n{torch}from permutohedral.models.image_denoiser import ImageDenoiser{estimated}\n"
        f"{_FILES}{imported}\n\nphoto = read_picture({_path(photo)})\n{noisy}sigma = {level}\n"
        f'clean = ImageDenoiser("{settings.model}")({given}, {removed}).clamp(0, 1)\n{hidden}'
        'write_picture(photo.with_pixels(clean), Path("clean.png"))\n'
    )
    command = _command(
        *("denoise", source, "clean.png"),
        sigma=settings.sigma,
        strength=None if settings.strength == 1 else settings.strength,
        model=None if settings.model == "auto" else settings.model,
    )
    return Code(python, command)


def _read_visible(photo: str, transparent: bool) -> tuple[str, str]:
    """The line that imports what hides colors, if that is needed, and lines that read the pixels that one sees."""
    if not transparent:
        return "", f"photo = read_picture({_path(photo)}).pixels"
    imported = "\nfrom permutohedral.pictures.transparency import hide_colors"
    return imported, f"picture = read_picture({_path(photo)})\nphoto = hide_colors(picture.pixels, picture.alpha)"


def segment_code(settings: FieldSettings, photo: str, transparent: bool = False) -> Code:
    """Of the labels that the strokes in labels.png spread to."""
    imported, read = _read_visible(photo, transparent)
    python = f"""from pathlib import Path

import permutohedral as ph
{_FILES}
from permutohedral.pictures.label_maps import UNKNOWN, LabelMap, read_label_map{imported}

{read}
given = read_label_map(Path("labels.png"), black_is_a_label=False)
energies = ph.crf.energies_from_labels(given.labels, len(given.colors), {settings.certainty}, unknown=UNKNOWN)
kernels = [
    ph.crf.spatial_kernel(photo.shape[1:], 3.0, {settings.smoothness}),
    ph.crf.bilateral_kernel(photo, {settings.sigma_space}, {settings.sigma_range}, {settings.strength}),
]
marginals = ph.crf.mean_field(energies, kernels, {settings.steps})
write_picture(LabelMap(marginals.argmax(dim=0), given.colors).paint(), Path("out.png"))
"""
    command = _command(
        *("segment", photo, "labels.png", "out.png"),
        certainty=settings.certainty,
        sigma_space=settings.sigma_space,
        sigma_range=settings.sigma_range,
        strength=settings.strength,
        smoothness=settings.smoothness,
        steps=settings.steps,
    )
    return Code(python, command)


def upsample_code(settings: UpsampleSettings, coarse: str, guide: str, result: str, transparent: bool = False) -> Code:
    """Of a map in the size of its guide."""
    imported, read = _read_visible(guide, transparent)
    smoothness = f", smoothness={settings.smoothness}" if settings.mode == "solver" else ""
    python = f"""from pathlib import Path

import permutohedral as ph
from permutohedral.pictures.files import read_picture
from permutohedral.pictures.guided import EdgeSettings
from permutohedral.pictures.maps import read_map, write_map{imported}

coarse = read_map({_path(coarse)})
{read}
edges = EdgeSettings(sigma_gray={settings.sigma_gray}, sigma_color={settings.sigma_color})
guide, sigma_range = edges.guide(photo)
found = ph.upsample(coarse.values, guide, None, sigma_range, "{settings.mode}"{smoothness})
write_map(found, coarse, {_path(result)})
"""
    command = _command(
        *("upsample", coarse, guide, result),
        mode=settings.mode,
        sigma_gray=settings.sigma_gray,
        sigma_color=settings.sigma_color,
        smoothness=settings.smoothness if settings.mode == "solver" else None,
    )
    return Code(python, command)


def lattice_code(settings: LatticeSettings) -> Code:
    """Of the simplex around a point, and how much a value there counts at another place."""
    python = f"""import torch

import permutohedral as ph

# y before x, in standard deviations
point = torch.tensor([[{settings.y}, {settings.x}]], dtype=torch.float64)
lattice = ph.build_lattice(point, neighborhood_size={settings.size})
print("weights of the corners:", lattice.source.barycentric[0].tolist())
print("taps of a learned filter:", lattice.neighborhood.filter_size)
"""
    return Code(python, _command("figure", "neighborhood", "taps.svg", dimension=2, size=settings.size))
