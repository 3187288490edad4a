"""Applications, provisional: one function per job on files, and networks with trained weights, imported lazily."""

import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from permutohedral.apps.jobs.colorize_image import colorize_image as colorize_image
    from permutohedral.apps.jobs.denoise_image import DenoisedImage as DenoisedImage
    from permutohedral.apps.jobs.denoise_image import denoise_image as denoise_image
    from permutohedral.apps.jobs.fill_map import fill_map as fill_map
    from permutohedral.apps.jobs.filter_array import FilteredArray as FilteredArray
    from permutohedral.apps.jobs.filter_array import filter_array as filter_array
    from permutohedral.apps.jobs.filter_image import FilteredImage as FilteredImage
    from permutohedral.apps.jobs.filter_image import filter_image as filter_image
    from permutohedral.apps.jobs.guided_maps import GuidedMap as GuidedMap
    from permutohedral.apps.jobs.segment_cloud import SegmentedCloud as SegmentedCloud
    from permutohedral.apps.jobs.segment_cloud import segment_cloud as segment_cloud
    from permutohedral.apps.jobs.segment_image import SegmentedImage as SegmentedImage
    from permutohedral.apps.jobs.segment_image import segment_image as segment_image
    from permutohedral.apps.jobs.smooth_cloud import SmoothedCloud as SmoothedCloud
    from permutohedral.apps.jobs.smooth_cloud import smooth_cloud as smooth_cloud
    from permutohedral.apps.jobs.solve_map import solve_map as solve_map
    from permutohedral.apps.jobs.upsample_map import upsample_map as upsample_map
    from permutohedral.apps.models.denoiser import Denoiser as Denoiser
    from permutohedral.apps.models.point_segmentation import PointSegmenter as PointSegmenter

# public functions and classes, and their modules
_MODULES = {
    "colorize_image": "jobs.colorize_image",
    "DenoisedImage": "jobs.denoise_image",
    "denoise_image": "jobs.denoise_image",
    "fill_map": "jobs.fill_map",
    "FilteredArray": "jobs.filter_array",
    "filter_array": "jobs.filter_array",
    "FilteredImage": "jobs.filter_image",
    "filter_image": "jobs.filter_image",
    "GuidedMap": "jobs.guided_maps",
    "SegmentedCloud": "jobs.segment_cloud",
    "segment_cloud": "jobs.segment_cloud",
    "SegmentedImage": "jobs.segment_image",
    "segment_image": "jobs.segment_image",
    "SmoothedCloud": "jobs.smooth_cloud",
    "smooth_cloud": "jobs.smooth_cloud",
    "solve_map": "jobs.solve_map",
    "upsample_map": "jobs.upsample_map",
    "Denoiser": "models.denoiser",
    "PointSegmenter": "models.point_segmentation",
}

# modules and their extras of the package, if not images
_EXTRAS = {"jobs.filter_array": "dask", "jobs.segment_cloud": "clouds", "jobs.smooth_cloud": "clouds"}

__all__ = list(_MODULES)


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = _MODULES[name]
    try:
        return getattr(importlib.import_module(f"{__name__}.{module}"), name)
    except ModuleNotFoundError as error:
        error.add_note(f"apps.{name} needs an extra: pip install 'permutohedral[{_EXTRAS.get(module, 'images')}]'")
        return _missing(error)


def _missing(error: ModuleNotFoundError) -> Callable[..., NoReturn]:
    """Return a function that raises `error`, so that `help` and `hasattr` work without the extra."""

    def missing(*_: Any, **__: Any) -> NoReturn:
        """Raise `ModuleNotFoundError`: this function needs an extra of the package."""
        raise error

    return missing


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
