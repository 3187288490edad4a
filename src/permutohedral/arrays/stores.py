"""Zarr stores that are written part by part: empty ones like a source, and parts of them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from permutohedral.arrays.sources import Region, Source


def member_of(source: Source) -> str:
    """The array in the store of a result: its first level, or the store itself."""
    return "0" if source.kind == "ome" else ""


def make_store(folder: Path, source: Source, tile: Sequence[int]) -> None:
    """An empty store like the source: compressed alike, in its chunks as far as they fit the tiles.

    Args:
        folder: of the store.
        source: what it is like.
        tile: extents of the parts that will be written.
    """
    import zarr

    chunks = tuple(min(pair) for pair in zip(tile, source.chunks, strict=True))
    options: dict[str, Any] = {"zarr_format": source.zarr_format, "chunks": chunks, "dtype": source.dtype}
    if source.zarr_format == 2:
        options["chunk_key_encoding"] = {"name": "v2", "separator": "/"}
    elif source.axes:
        options["dimension_names"] = [letter.lower() for letter in source.axes]
    if source.kind != "tiff":
        with source.opened() as like:
            options["compressors"] = like.compressors
            if source.zarr_format == 3:
                options["dimension_names"] = like.metadata.dimension_names or options["dimension_names"]
    if source.kind != "ome":
        zarr.create_array(str(folder), shape=source.shape, attributes=dict(source.attributes), **options)
        return
    zarr.create_group(str(folder), zarr_format=source.zarr_format, attributes=_numbered_levels(source.attributes))
    for number, shape in enumerate((source.shape, *source.coarser)):
        zarr.create_array(str(folder), name=str(number), shape=shape, **options)


def write_part(path: Path, region: Region, part: NDArray[Any]) -> None:
    """Write a part of an array that `make_store` made; chunks of zeros, which it is filled with, are not stored.

    Args:
        path: of the array.
        region: what is written, in whole chunks.
        part: the numbers.
    """
    import zarr

    array: Any = zarr.open_array(str(path), mode="r+")
    # zarr looks for such chunks as well, and takes longer for it than it takes to compress them
    none_empty = all(part[chunk].any() for chunk in _chunks_of(part.shape, array.chunks))
    zarr.Array(zarr.AsyncArray(array.metadata, array.store_path, {"write_empty_chunks": none_empty}))[region] = part


def _chunks_of(shape: Sequence[int], chunks: Sequence[int]) -> Iterator[Region]:
    """The regions of all chunks, in the order of the array.

    >>> [*_chunks_of((3,), (2,))]
    [(slice(0, 2, None),), (slice(2, 4, None),)]
    """
    along = zip(shape, chunks, strict=True)
    return itertools.product(*([slice(at, at + chunk) for at in range(0, extent, chunk)] for extent, chunk in along))


def _numbered_levels(attributes: Any) -> dict[str, Any]:
    """What describes an OME-Zarr, of the first of its pictures, whose levels are called 0, 1, ..."""
    described = dict(attributes)
    inner = described.get("ome", described)
    scales = dict(inner["multiscales"][0])
    scales["datasets"] = [{**level, "path": str(number)} for number, level in enumerate(scales["datasets"])]
    inner = {**inner, "multiscales": [scales]}
    return {**described, "ome": inner} if "ome" in described else inner
