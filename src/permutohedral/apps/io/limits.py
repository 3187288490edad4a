"""The size of images and maps, checked before they are decoded."""

from __future__ import annotations

import os

from permutohedral.errors import InputError

# a small file can claim any size: 134 million pixels of RGB take 1.6 GB in float32. Pillow warns above 89 million
# pixels, and raises above 179 million
MAX_PIXELS = 1 << 27
MAX_PIXELS_VARIABLE = "PERMUTOHEDRAL_MAX_PIXELS"
# a pixel of more channels counts as several
_SAMPLES = 4


def check_size(name: object, width: int, height: int, samples: int = 1, max_pixels: int | None = None) -> None:
    """Raise `InputError` if a file claims more pixels than `max_pixels` or the limit of the process.

    That is `MAX_PIXELS`, or what the environment variable `PERMUTOHEDRAL_MAX_PIXELS` says, if it is less.
    """
    limit = min(MAX_PIXELS if max_pixels is None else max_pixels, _limit_of_process())
    if width * height * max(1, samples / _SAMPLES) > limit:
        channels = f" of {samples:,} channels" if samples > _SAMPLES else ""
        raise InputError(f"{name} has {width:,} x {height:,} pixels{channels}, more than {limit:,}; crop or scale it")


def _limit_of_process() -> int:
    given = os.environ.get(MAX_PIXELS_VARIABLE, str(MAX_PIXELS))
    try:
        return min(MAX_PIXELS, int(given))
    except ValueError as error:
        raise InputError(f"{MAX_PIXELS_VARIABLE} must be a whole number of pixels, got {given[:40]!r}") from error
