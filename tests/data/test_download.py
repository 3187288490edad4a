from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from permutohedral.data import download
from permutohedral.data.download import DATA_VARIABLE, RemoteFile, find_files
from permutohedral.errors import DataError

pooch = pytest.importorskip("pooch", reason="pooch is not installed")

CONTENT = b"a file"
FILE = RemoteFile("part/file.bin", hashlib.sha256(CONTENT).hexdigest(), ("https://example.org/file.bin",))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "data" / "set" / "part" / "file.bin"
    path.parent.mkdir(parents=True)
    path.write_bytes(CONTENT)
    return tmp_path / "data"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv(DATA_VARIABLE, raising=False)
    monkeypatch.setattr(pooch, "os_cache", lambda project: tmp_path / "cache" / project)
    return tmp_path / "cache" / "permutohedral"


def test_finds_files_in_the_folder_of_all_datasets_or_of_one(folder: Path) -> None:
    expected = folder / "set" / "part" / "file.bin"
    assert find_files("set", [FILE], folder) == [expected]
    assert find_files("set", [FILE], folder / "set") == [expected]


def test_the_environment_names_the_folder_and_an_argument_overrides_it(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(DATA_VARIABLE, str(folder))
    assert find_files("set", [FILE])[0].read_bytes() == CONTENT
    with pytest.raises(DataError, match="missing"):
        find_files("set", [FILE], tmp_path / "elsewhere")


def test_a_missing_file_is_told_with_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"file\.bin is missing\. Point --data or PERMUTOHEDRAL_DATA"):
        find_files("set", [FILE], tmp_path)


def test_a_damaged_file_is_told_with_what_to_do(folder: Path) -> None:
    (folder / "set" / "part" / "file.bin").write_bytes(b"a damaged file")
    with pytest.raises(DataError, match=r"damaged.*Delete it"):
        find_files("set", [FILE], folder)
    assert find_files("set", [FILE], folder, check=False)


def test_downloads_once_and_again_when_damaged(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    served: list[str] = []

    def retrieve(url: str, known_hash: str, fname: str, path: Path) -> None:
        assert known_hash == f"sha256:{FILE.sha256}"
        served.append(url)
        Path(path).mkdir(parents=True, exist_ok=True)
        (Path(path) / fname).write_bytes(CONTENT)

    monkeypatch.setattr(pooch, "retrieve", retrieve)
    [path] = find_files("set", [FILE])
    assert path == cache / "set" / "part" / "file.bin"
    find_files("set", [FILE])
    assert len(served) == 1
    path.write_bytes(b"damaged since")
    find_files("set", [FILE])
    assert len(served) == 2


def test_tries_every_address_and_then_says_what_to_do(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[str] = []

    def retrieve(url: str, *_: object) -> None:
        tried.append(url)
        raise OSError("no network")

    monkeypatch.setattr(pooch, "retrieve", retrieve)
    file = RemoteFile(FILE.name, FILE.sha256, ("https://example.org/1", "https://example.org/2"))
    with pytest.raises(DataError, match="Check the network, or put the file into a folder"):
        find_files("set", [file])
    assert tried == list(file.addresses)


def test_checksum_is_sha256() -> None:
    assert download.checksum(b"") == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
