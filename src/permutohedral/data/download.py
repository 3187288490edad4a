"""Files of a dataset: from a folder of the user, else from public addresses into the user's cache. Always checked.

A folder comes from an argument (`--data` on the command line) or from the environment variable
`PERMUTOHEDRAL_DATA`. It holds one folder per dataset, or is that folder itself. Nothing is ever written there.
Downloads go to the user's cache, or where `PERMUTOHEDRAL_CACHE` says.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from permutohedral.errors import DataError, InputError

DATA_VARIABLE = "PERMUTOHEDRAL_DATA"
CACHE_VARIABLE = "PERMUTOHEDRAL_CACHE"


@dataclass(frozen=True)
class RemoteFile:
    """A file that anyone can download.

    Attributes:
        name: path inside the dataset's folder, such as `train/100075.jpg`.
        sha256: of the file that the addresses serve.
        addresses: where it is served, over https, tried in this order.
    """

    name: str
    sha256: str
    addresses: tuple[str, ...]

    def __post_init__(self) -> None:
        if ".." in Path(self.name).parts or Path(self.name).is_absolute():
            raise InputError(f"{self.name} would leave the folder of its dataset")
        for address in self.addresses:
            parts = urlsplit(address)
            # a server on this machine needs no certificate
            if parts.scheme != "https" and parts.hostname not in ("127.0.0.1", "localhost"):
                raise InputError(f"{address} is not an https address; without it anyone on the way can change the file")


def find_files(
    dataset: str, files: Sequence[RemoteFile], folder: str | Path | None = None, *, check: bool = True
) -> list[Path]:
    """Where the files are on this machine; downloads them if no folder is given.

    Args:
        dataset: name of the dataset's folder.
        files: what is wanted.
        folder: the user's data; default: what `PERMUTOHEDRAL_DATA` says, else the user's cache.
        check: compare the checksums of files in a folder; without it the caller checks what it reads.

    Raises:
        DataError: a file is missing from the folder, is damaged, or no address serves it.
    """
    given = folder or os.environ.get(DATA_VARIABLE)
    if not given:
        return _download(dataset, files)
    root = Path(given).expanduser()
    if (root / dataset).is_dir():
        root = root / dataset
    return [_find(root, file, check) for file in files]


def _find(root: Path, file: RemoteFile, check: bool) -> Path:
    path = root / file.name
    if not path.is_file():
        raise DataError(
            f"{path} is missing. Point --data or {DATA_VARIABLE} to a folder that holds it, or leave both out to "
            f"download it from {file.addresses[0]}"
        )
    if check and checksum(path.read_bytes()) != file.sha256:
        raise damaged(path)
    return path


def damaged(path: Path) -> DataError:
    """The error for a file that is not what was published."""
    return DataError(
        f"{path} is damaged: its SHA-256 differs from that of the published file. Delete it and fetch it again; "
        f"without --data and {DATA_VARIABLE} that happens by itself"
    )


def checksum(content: bytes) -> str:
    """SHA-256 in hexadecimal digits."""
    return hashlib.sha256(content).hexdigest()


def _download(dataset: str, files: Sequence[RemoteFile]) -> list[Path]:
    import pooch
    from rich.console import Console
    from rich.progress import Progress

    cache = Path(os.environ.get(CACHE_VARIABLE) or pooch.os_cache("permutohedral")) / dataset
    missing = [file for file in files if not _is_whole(cache / file.name, file.sha256)]
    if missing:
        pooch.get_logger().setLevel("WARNING")
        with Progress(console=Console(stderr=True), transient=True) as progress:
            for file in progress.track(missing, description=f"downloading {dataset}"):
                _retrieve(file, cache, pooch)
    return [cache / file.name for file in files]


def _is_whole(path: Path, sha256: str) -> bool:
    return path.is_file() and checksum(path.read_bytes()) == sha256


def _retrieve(file: RemoteFile, cache: Path, pooch: Any) -> None:
    """Download one file whole or not at all: pooch moves it into place once its checksum is right."""
    target = cache / file.name
    reasons = []
    for address in file.addresses:
        try:
            pooch.retrieve(address, f"sha256:{file.sha256}", target.name, target.parent)
            return
        # requests raises children of OSError, pooch a ValueError for a wrong checksum
        except (OSError, ValueError) as error:
            reasons.append(f"{address}: {error}")
    raise DataError(
        f"cannot download {file.name}. Check the network, or put the file into a folder and point --data or "
        f"{DATA_VARIABLE} to it. Tried " + "; ".join(reasons)
    )
