"""Files of data sets: from a folder of the user, or downloaded into a cache. Checksums are verified.

The folder comes from `--data` or `PERMUTOHEDRAL_DATA`. It holds one folder per data set, or is that folder itself.
Nothing is written there. Downloads go to the user's cache, or to `PERMUTOHEDRAL_CACHE`.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from permutohedral.errors import DataError

DATA_VARIABLE = "PERMUTOHEDRAL_DATA"
CACHE_VARIABLE = "PERMUTOHEDRAL_CACHE"


def find_folder(dataset: str, folder: str | Path | None, layout: str) -> Path:
    """Return the folder of a data set that cannot be downloaded.

    Raises:
        DataError: no folder is given, or it does not exist; the message describes its layout.
    """
    given = folder or os.environ.get(DATA_VARIABLE)
    root = None if not given else Path(given).expanduser()
    if root is None or not root.is_dir():
        raise DataError(
            f"{dataset} cannot be downloaded; point --data or {DATA_VARIABLE} to a folder that holds a folder "
            f"{dataset} with {layout}, got {given}"
        )
    return root / dataset if (root / dataset).is_dir() else root


def find_files(
    dataset: str,
    registry: Mapping[str, str],
    mirrors: Sequence[str],
    folder: str | Path | None = None,
    *,
    check: bool = True,
) -> list[Path]:
    """Return the paths of files; download them if no folder is given.

    Args:
        dataset: name of its folder.
        registry: SHA-256 of each file, by its path in that folder.
        mirrors: addresses that the paths are appended to, tried in this order.
        folder: the user's data. Default: `PERMUTOHEDRAL_DATA`, else the cache.
        check: verify the files of a folder. Without it the caller verifies their content.

    Raises:
        DataError: a file is missing, damaged, or served by no mirror.
    """
    given = folder or os.environ.get(DATA_VARIABLE)
    if not given:
        return _download(dataset, registry, mirrors)
    root = find_folder(dataset, given, f"{len(registry)} files of {mirrors[0]}")
    for name, digest in registry.items():
        if not (root / name).is_file():
            raise DataError(f"{root / name} is missing; leave out --data and {DATA_VARIABLE} to download it")
        if check:
            verify((root / name).read_bytes(), digest, root / name)
    return [root / name for name in registry]


def verify(content: bytes, digest: str, path: Path) -> bytes:
    """Return `content` if its SHA-256 is `digest`.

    Raises:
        DataError: it is not.
    """
    if hashlib.sha256(content).hexdigest() != digest:
        raise DataError(f"{path} is damaged: its SHA-256 differs from the published one; delete it and fetch it again")
    return content


def _download(dataset: str, registry: Mapping[str, str], mirrors: Sequence[str]) -> list[Path]:
    import pooch

    pooch.get_logger().setLevel("WARNING")
    cache = Path(os.environ.get(CACHE_VARIABLE) or pooch.os_cache("permutohedral")) / dataset
    digests = {name: f"sha256:{digest}" for name, digest in registry.items()}
    reasons = []
    for mirror in mirrors:
        keeper = pooch.create(cache, mirror, registry=digests)
        try:
            return [Path(keeper.fetch(name)) for name in registry]
        # requests raises children of OSError, pooch a ValueError for a wrong checksum
        except (OSError, ValueError) as error:
            reasons.append(f"{mirror}: {error}")
    raise DataError(
        f"{dataset} cannot be downloaded; check the network, or point --data or {DATA_VARIABLE} to a folder that holds "
        f"it. Tried {'; '.join(reasons)}"
    )
