"""Jobs on files: one function per job, imported when it is first used."""

import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from permutohedral.files.arrays import FilteredArray as FilteredArray
    from permutohedral.files.arrays import filter_array as filter_array
    from permutohedral.files.clouds import segment_cloud as segment_cloud
    from permutohedral.files.clouds import smooth_cloud as smooth_cloud
    from permutohedral.files.images import denoise_image as denoise_image
    from permutohedral.files.images import filter_image as filter_image
    from permutohedral.files.maps import colorize_image as colorize_image
    from permutohedral.files.maps import solve_map as solve_map
    from permutohedral.files.maps import upsample_map as upsample_map
    from permutohedral.files.segmentation import SegmentedImage as SegmentedImage
    from permutohedral.files.segmentation import segment_image as segment_image

# public functions and their modules
_MODULES = {
    "filter_image": "images",
    "denoise_image": "images",
    "segment_image": "segmentation",
    "SegmentedImage": "segmentation",
    "upsample_map": "maps",
    "solve_map": "maps",
    "colorize_image": "maps",
    "filter_array": "arrays",
    "FilteredArray": "arrays",
    "smooth_cloud": "clouds",
    "segment_cloud": "clouds",
}

# modules and their extras of the package
_EXTRAS = {"images": "images", "segmentation": "images", "maps": "images", "arrays": "dask", "clouds": "clouds"}

__all__ = list(_MODULES)


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
    except ModuleNotFoundError as error:
        error.add_note(f"files.{name} needs an extra: pip install 'permutohedral[{_EXTRAS[_MODULES[name]]}]'")
        return _missing(error)


def _missing(error: ModuleNotFoundError) -> Callable[..., NoReturn]:
    """Return a function that raises `error`, so that `help` and `hasattr` work without the extra."""

    def missing(*_: Any, **__: Any) -> NoReturn:
        """Raise `ModuleNotFoundError`: this function needs an extra of the package."""
        raise error

    return missing


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
