"""Files of data sets: folders, checksums, downloads."""

from __future__ import annotations

import hashlib
import http.server
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from experiments.data.download import CACHE_VARIABLE, DATA_VARIABLE, find_files, find_folder
from permutohedral.errors import DataError

CONTENT = b"a file"
REGISTRY = {"part/file.bin": hashlib.sha256(CONTENT).hexdigest()}
MIRRORS = ["https://example.org/"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "data" / "set" / "part" / "file.bin"
    path.parent.mkdir(parents=True)
    path.write_bytes(CONTENT)
    return tmp_path / "data"


@pytest.fixture
def server(folder: Path) -> Iterator[str]:
    """Serve the files of the data set; yield the address."""
    handler = partial(http.server.SimpleHTTPRequestHandler, directory=str(folder / "set"))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as running:
        threading.Thread(target=running.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{running.server_port}/"
        running.shutdown()


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv(DATA_VARIABLE, raising=False)
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_finds_files_in_the_folder_of_all_data_sets_or_of_one(folder: Path) -> None:
    expected = folder / "set" / "part" / "file.bin"
    assert find_files("set", REGISTRY, MIRRORS, folder) == [expected]
    assert find_files("set", REGISTRY, MIRRORS, folder / "set") == [expected]


def test_an_argument_overrides_the_environment(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(DATA_VARIABLE, str(folder))
    assert find_files("set", REGISTRY, MIRRORS)[0].read_bytes() == CONTENT
    with pytest.raises(DataError, match="missing"):
        find_files("set", REGISTRY, MIRRORS, tmp_path)


def test_rejects_a_damaged_file(folder: Path) -> None:
    (folder / "set" / "part" / "file.bin").write_bytes(b"a damaged file")
    with pytest.raises(DataError, match=r"damaged.*delete it"):
        find_files("set", REGISTRY, MIRRORS, folder)
    assert find_files("set", REGISTRY, MIRRORS, folder, check=False)


def test_asks_for_a_folder_of_data_that_cannot_be_downloaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(DATA_VARIABLE, raising=False)
    for given in (None, "absent"):
        with pytest.raises(DataError, match=r"point --data or PERMUTOHEDRAL_DATA .* with images/NAME"):
            find_folder("set", given, "images/NAME.jpg")


def test_downloads_from_the_next_mirror_once_and_again_when_damaged(cache: Path, folder: Path, server: str) -> None:
    [path] = find_files("set", REGISTRY, [f"{server}absent/", server])
    assert path == cache / "set" / "part" / "file.bin"
    assert path.read_bytes() == CONTENT
    path.write_bytes(b"damaged")
    assert find_files("set", REGISTRY, [server])[0].read_bytes() == CONTENT
    (folder / "set" / "part" / "file.bin").unlink()
    assert find_files("set", REGISTRY, [server]) == [path]


@pytest.mark.usefixtures("cache")
def test_reports_every_mirror_and_rejects_other_content(folder: Path, server: str) -> None:
    (folder / "set" / "part" / "file.bin").write_bytes(b"another file")
    with pytest.raises(DataError, match=r"check the network.*absent.*; http"):
        find_files("set", REGISTRY, [f"{server}absent/", server])
