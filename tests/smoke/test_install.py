"""The installed package: imports, backends, errors, files and the command line."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import inspect
import pydoc
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import permutohedral as ph
from permutohedral.apps.io.atomic import replacing, write_bytes

needs_images = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("typer", "PIL", "tifffile", "skimage")),
    reason="the extra images is not installed: pip install 'permutohedral[images]'",
)
# paths that need quotes, or more than ASCII
NAMES = ["plain", "with spaces", "Größe 図"]


def run(*arguments: str, code: int = 0) -> str:
    """Run `python -m permutohedral`; return what it prints."""
    command = [sys.executable, "-m", "permutohedral", *arguments]
    done = subprocess.run(command, capture_output=True, encoding="utf-8", errors="replace", check=False)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def write_picture(path: Path) -> Path:
    from PIL import Image

    path.parent.mkdir(exist_ok=True)
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (24, 32, 3), dtype=np.uint8)).save(path)
    return path


def read_picture(path: Path) -> np.ndarray:
    from PIL import Image

    with Image.open(path) as image:
        return np.asarray(image)


def test_version_is_that_of_the_metadata() -> None:
    assert importlib.metadata.version("permutohedral") == ph.__version__


def test_help_needs_no_extra() -> None:
    for module in (ph, *filter(inspect.ismodule, (getattr(ph, name) for name in ph.__all__))):
        for name in getattr(module, "__all__", ()):
            assert getattr(module, name) is not None
        # a lookup that raises anything but AttributeError ends both
        assert dict(inspect.getmembers(module)).keys() >= set(getattr(module, "__all__", ()))
        assert module.__name__ in pydoc.render_doc(module)
    assert hasattr(ph, "dask") == (importlib.util.find_spec("dask") is not None)


@pytest.mark.skipif(importlib.util.find_spec("PIL") is not None, reason="the extras are installed")
def test_missing_extra_is_named() -> None:
    with pytest.raises(AttributeError, match=r"permutohedral\[dask\]"):
        ph.dask  # noqa: B018
    with pytest.raises(ModuleNotFoundError, match=r"permutohedral\[dask\]"):
        from permutohedral import dask  # noqa: F401
    from permutohedral.apps import filter_image

    calls = (
        lambda: filter_image("photo.png", "smooth.png"),
        ph.apps.Denoiser.from_pretrained,
        lambda: ph.apps.PointSegmenter.load("model.safetensors"),
    )
    for call in calls:
        with pytest.raises(ModuleNotFoundError) as raised:
            call()
        assert "permutohedral[images]" in raised.value.__notes__[0]


def test_compiled_wheel_has_a_working_core() -> None:
    wheel = importlib.metadata.distribution("permutohedral").read_text("WHEEL") or ""
    if "Root-Is-Purelib: true" in wheel:
        pytest.skip("this is the wheel without the native core")
    assert "native" in ph.backends.available(), str(ph.backends.explain())


def test_reference_backend_runs_everywhere() -> None:
    assert ph.backends.available()[-1] == "reference"


def test_explain_names_the_backend() -> None:
    assert ph.backends.explain(torch.zeros(1)).name == ph.backends.available()[0].replace("triton", "native")


def test_unknown_backend_raises() -> None:
    with pytest.raises(ph.errors.PermutohedralError, match="backend"):
        ph.backends.use("abacus")


def test_bad_argument_raises_with_its_name() -> None:
    with pytest.raises(ph.errors.InputError, match="sigma_space"):
        ph.bilateral_filter(torch.rand(3, 8, 8), sigma_space=-1.0, sigma_color=0.1)


def test_request_beyond_memory_raises() -> None:
    with pytest.raises(ph.errors.MemoryLimitError):
        ph.build_lattice(torch.rand(1, 3).expand(10_000, 3), memory_limit=1000)


def test_available_memory_is_plausible() -> None:
    # of this machine, or of its container
    assert 1 << 26 < ph.lattice.memory.available_memory(torch.device("cpu")) < 1 << 50


@pytest.mark.parametrize("name", NAMES)
def test_write_replaces_a_file(tmp_path: Path, name: str) -> None:
    path = tmp_path / name / f"{name}.bin"
    for content in (b"first", b"second"):
        write_bytes(path, content)
        assert path.read_bytes() == content
    assert [each.name for each in path.parent.iterdir()] == [path.name]


def test_failed_write_keeps_the_file(tmp_path: Path) -> None:
    path = tmp_path / "note.txt"
    write_bytes(path, b"before")

    def fail() -> None:
        with replacing(path) as partial:
            partial.write_bytes(b"half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert path.read_bytes() == b"before"
    assert list(tmp_path.iterdir()) == [path]


def test_write_onto_a_folder_raises(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(ph.errors.StorageError, match="cannot write"):
        write_bytes(tmp_path / "folder", b"content")


@needs_images
@pytest.mark.parametrize("name", NAMES)
def test_filter_image(tmp_path: Path, name: str) -> None:
    source, result = (tmp_path / name / f"{name}{end}.png" for end in ("", " filtered"))
    before = read_picture(write_picture(source))
    ph.apps.filter_image(source, result, sigma_space=3.0, sigma_color=0.5)
    after = read_picture(result)
    assert after.shape == before.shape
    assert after.std() < before.std()


@needs_images
def test_upsample_map_writes_an_array(tmp_path: Path) -> None:
    np.save(tmp_path / "depth.npy", np.full((6, 8), 2.5, np.float32))
    guide = write_picture(tmp_path / "guide.png")
    ph.apps.upsample_map(tmp_path / "depth.npy", tmp_path / "fine.npy", guide=guide)
    np.testing.assert_allclose(np.load(tmp_path / "fine.npy"), np.full((24, 32), 2.5), atol=1e-4)


@needs_images
def test_help_lists_the_commands() -> None:
    assert "image" in run("--help")


@needs_images
def test_version_option() -> None:
    assert ph.__version__ in run("--version")


@needs_images
def test_filter_command(tmp_path: Path) -> None:
    source = write_picture(tmp_path / "with spaces" / "photo.png")
    run("image", "filter", str(source), str(tmp_path / "smooth.png"), "--sigma-space", "3")
    assert read_picture(tmp_path / "smooth.png").shape == (24, 32, 3)


@needs_images
def test_command_rejects_a_bad_option(tmp_path: Path) -> None:
    source = write_picture(tmp_path / "photo.png")
    printed = run("image", "filter", str(source), str(tmp_path / "smooth.png"), "--sigma-space", "none", code=2)
    assert "sigma-space" in printed


@needs_images
def test_command_names_a_missing_file(tmp_path: Path) -> None:
    printed = run("image", "filter", str(tmp_path / "absent.png"), str(tmp_path / "smooth.png"), code=1)
    assert "absent.png" in printed
    assert "Traceback" not in printed
