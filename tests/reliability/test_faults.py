"""Full disks, folders that cannot be written, damaged files, broken downloads: a clear message, and nothing is lost."""

from __future__ import annotations

import http.server
import pickle
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from reliability.disks import disk, largest_file, remount
from reliability.trainings import Experiment, finish, start, train_and_explain, what_is_left

from permutohedral.data.download import CACHE_VARIABLE, RemoteFile, checksum, find_files
from permutohedral.errors import DataError, InputError, PermutohedralError, StorageError
from permutohedral.experiments.checkpoints import read_checkpoint
from permutohedral.experiments.result import read_weights, write_text, write_weights
from permutohedral.pictures.files import MAX_PIXELS_VARIABLE, Picture, read_picture, write_picture

EXPERIMENT: Experiment = "denoising"


def fail(output: Path, resume: bool = True) -> str:
    """Run a training that fails; its message."""
    process = start(EXPERIMENT, output, resume, target=train_and_explain)
    process.join(timeout=120)
    assert process.exitcode == 1
    return (output / "error-0").read_text()


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole")
    finish(EXPERIMENT, folder)
    return folder


def checkpoint_in(folder: Path) -> Path:
    [path] = folder.rglob("last.ckpt")
    return path


def test_a_full_disk(whole: Path, tmp_path: Path) -> None:
    """What was on it before stays, and with more room the training goes on to the same end."""
    needed = sum(file.stat().st_size for file in whole.rglob("*") if file.is_file())
    with disk(tmp_path / "disk", f"{needed // 1024 * 2}k") as folder:
        (folder / "before").write_bytes(b"b" * (needed // 2))
        (folder / "filling").write_bytes(b"f" * (needed // 4096 * 4096))
        process = start(EXPERIMENT, folder, True, target=_train_elsewhere)
        process.join(timeout=120)
        message = (tmp_path / "error").read_text()
        assert "StorageError: cannot write" in message
        assert "No space left on device" in message
        assert (folder / "before").read_bytes() == b"b" * (needed // 2)
        assert not list(folder.rglob("*.partial*"))
        (folder / "filling").unlink()
        remount(folder, "size=64m")
        finish(EXPERIMENT, folder, True)
        assert what_is_left(EXPERIMENT, folder) == what_is_left(EXPERIMENT, whole)


def _train_elsewhere(experiment: Experiment, output: Path, resume: bool) -> None:
    """Its losses would fill the disk, too."""
    from reliability import trainings

    trainings._record_losses = lambda *_: None
    try:
        trainings.train(experiment, output, resume)
    except PermutohedralError as error:
        (output.parent / "error").write_text(f"{type(error).__name__}: {error}")


def test_a_disk_that_cannot_be_written(tmp_path: Path) -> None:
    with disk(tmp_path / "disk", "1m") as folder:
        write_text(folder / "result.json", "before")
        remount(folder, "ro")
        with pytest.raises(StorageError, match=r"result.json: Read-only file system; what was there before is unch"):
            write_text(folder / "result.json", "after")
        with pytest.raises(StorageError, match="Read-only file system; nothing was left"):
            write_weights(folder / "new" / "weights.safetensors", torch.nn.Linear(2, 2))
        with pytest.raises(StorageError, match="Read-only"):
            write_picture(Picture(torch.zeros(1, 4, 4)), folder / "picture.png")
        assert [file.name for file in folder.iterdir()] == ["result.json"]
        assert (folder / "result.json").read_text() == "before"


@pytest.mark.parametrize("kind", ["text", "weights", "checkpoint", "picture"])
def test_a_file_that_grows_too_large(kind: str, tmp_path: Path) -> None:
    """As on a full disk, in the middle of a file."""
    from permutohedral.experiments.checkpoints import WholeCheckpoints

    path = tmp_path / "file.png"
    path.write_text("before")
    layer = torch.nn.Linear(100, 1000)
    writers: dict[str, Callable[[], object]] = {
        "text": lambda: write_text(path, "x" * 100_000),
        "weights": lambda: write_weights(path, layer),
        "checkpoint": lambda: WholeCheckpoints().save_checkpoint({"global_step": 1, **layer.state_dict()}, path),
        "picture": lambda: write_picture(Picture(torch.rand(3, 200, 200)), path),
    }
    with largest_file(50_000), pytest.raises(StorageError, match=r"cannot write .*what was there before is unchanged"):
        writers[kind]()
    assert path.read_text() == "before"
    assert list(tmp_path.iterdir()) == [path]


class Harmful:
    """What a stranger might put into a checkpoint."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return (__import__("os").system, ("touch harmed",))


@pytest.mark.parametrize("damage", ["cut", "empty", "noise", "changed", "harmful", "other"])
def test_a_damaged_checkpoint(damage: str, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    content = checkpoint_in(whole).read_bytes()
    path = tmp_path / checkpoint_in(whole).relative_to(whole)
    path.parent.mkdir(parents=True)
    if damage == "harmful":
        torch.save({"global_step": Harmful()}, path)
    elif damage == "other":
        path.write_bytes(pickle.dumps({"weights": [1, 2]}))
    else:
        half = len(content) // 2
        noise = bytes(range(256)) * (half // 256)
        damaged = {"cut": content[:half], "empty": b"", "noise": noise, "changed": noise[:900] + content[900:]}
        path.write_bytes(damaged[damage])
    before = path.read_bytes()
    with pytest.raises(StorageError, match=r"damaged or no checkpoint.*delete it to train this row from the start"):
        read_checkpoint(path)
    if damage == "cut":
        assert fail(tmp_path).startswith("StorageError: the checkpoint")
    assert path.read_bytes() == before
    assert not (tmp_path / "harmed").exists()


def test_damaged_weights(tmp_path: Path) -> None:
    path = tmp_path / "weights.safetensors"
    write_weights(path, torch.nn.Linear(2, 2))
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(StorageError, match="cannot read the weights"):
        read_weights(path)


CONTENT = b"0123456789" * 1000


class Server(http.server.BaseHTTPRequestHandler):
    """Serves a file whole, cut short, or changed."""

    fault = ""

    def do_GET(self) -> None:
        self.send_response(500 if self.fault == "refused" else 200)
        self.send_header("Content-Length", str(len(CONTENT)))
        self.end_headers()
        self.wfile.write({"cut": CONTENT[:500], "changed": CONTENT[::-1]}.get(self.fault, CONTENT))

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    monkeypatch.delenv("PERMUTOHEDRAL_DATA", raising=False)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Server)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/file"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize("fault", ["cut", "changed", "refused"])
def test_a_broken_download(fault: str, address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = RemoteFile("part/file.bin", checksum(CONTENT), (address,))
    monkeypatch.setattr(Server, "fault", fault)
    with pytest.raises(DataError, match=r"cannot download part/file.bin. Check the network.*Tried http"):
        find_files("set", [file])
    assert not [path for path in (tmp_path / "cache").rglob("*") if path.is_file()]
    monkeypatch.setattr(Server, "fault", "")
    [path] = find_files("set", [file])
    assert path.read_bytes() == CONTENT
    # what is there and whole is not fetched again
    monkeypatch.setattr(Server, "fault", "refused")
    assert find_files("set", [file]) == [path]


def test_addresses_are_https_and_names_stay_inside() -> None:
    with pytest.raises(InputError, match="not an https address"):
        RemoteFile("file", "0" * 64, ("http://example.org/file",))
    for name in ("../file", "/etc/file", "part/../../file"):
        with pytest.raises(InputError, match="would leave the folder"):
            RemoteFile(name, "0" * 64, ("https://example.org/file",))


def claimed(width: int, height: int) -> bytes:
    """A small PNG file that claims any size."""
    import struct
    import zlib

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    pixels = zlib.compress(b"\0" * 1000)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")


def test_a_picture_that_claims_too_much(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "bomb.png"
    path.write_bytes(claimed(60_000, 60_000))
    with pytest.raises(InputError, match=r"claims 60,000 x 60,000 pixels.*PERMUTOHEDRAL_MAX_PIXELS"):
        read_picture(path)
    monkeypatch.setenv(MAX_PIXELS_VARIABLE, "10")
    path.write_bytes(claimed(4, 4))
    with pytest.raises(InputError, match="claims 4 x 4 pixels, more than 10"):
        read_picture(path)


@pytest.mark.parametrize("ending", ["png", "jpg", "gif", "bmp", "tif", "webp"])
def test_damaged_pictures(ending: str, tmp_path: Path) -> None:
    """Cut and changed in many places: read, or refused with one of the package's errors."""
    path = tmp_path / f"picture.{ending}"
    write_picture(Picture(torch.rand(3, 20, 24, generator=torch.Generator().manual_seed(0))), path)
    content = path.read_bytes()
    places = torch.randint(len(content), (60,), generator=torch.Generator().manual_seed(1)).tolist()
    for number, place in enumerate(places):
        damaged = content[:place] if number % 2 else content[:place] + bytes([number * 4]) + content[place + 1 :]
        path.write_bytes(damaged)
        try:
            read_picture(path)
        except PermutohedralError as error:
            assert str(path) in str(error)  # noqa: PT017
