"""Run the snippets and commands of README.md: all in the tests, the installed ones with `python tools/readme.py`."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]


def pages() -> list[Path]:
    """Return README.md, the pages of the documentation, and those of experiments."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), *sorted((ROOT / "experiments").rglob("*.md"))]


def blocks(language: str, page: Path = ROOT / "README.md") -> list[str]:
    """Return the code blocks of a page that are marked with this language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", page.read_text(), flags=re.MULTILINE | re.DOTALL)


def commands(program: str, page: Path = ROOT / "README.md") -> list[str]:
    """Return the lines of the page's shell blocks that call this program."""
    lines = "".join(blocks("bash", page)).replace("\\\n", " ").splitlines()
    return [line for line in lines if line.split()[:1] == [program]]


def run_snippets(page: Path = ROOT / "README.md") -> dict[str, Any]:
    """Run the Python blocks of a page one after another; what they define."""
    namespace: dict[str, Any] = {}
    for snippet in blocks("python", page):
        exec(compile(snippet, page.name, "exec"), namespace)
    return namespace


def write_pictures(folder: Path) -> None:
    """Write small images with the names that commands on our pages use."""
    import numpy as np
    from PIL import Image

    for name in ("photos", "network", "maps"):
        (folder / name).mkdir()
    pixels = np.random.default_rng(0).integers(0, 256, (24, 32, 3), dtype=np.uint8)
    for name in ("photo.png", "photo.jpg", "depth.png", "noisy.png", "strokes.png", "photos/photo.png"):
        Image.fromarray(pixels).save(folder / name)
    labels = np.repeat(np.repeat(np.array([[60, 200], [0, 200]], np.uint8), 12, axis=0), 16, axis=1)
    for name in ("labels.png", "gray.png", "certain.png"):
        Image.fromarray(labels).save(folder / name)
    trimap = np.repeat(np.array([0, 128, 128, 255], np.uint8), 8)[None].repeat(24, axis=0)
    Image.fromarray(trimap).save(folder / "trimap.png")
    np.save(folder / "network" / "photo.npy", np.full((3, 24, 32), 1 / 3))
    for name in ("depth.npy", "maps/photo.npy"):
        np.save(folder / name, labels[::4, ::4])


def main() -> None:
    """Run every snippet and every `permutohedral` command of README.md where no compiler can be found."""
    import permutohedral as ph

    if ROOT / "src" in Path(ph.__file__).parents:
        sys.exit("this runs what is installed, but the package came from src/")
    scripts = Path(sys.executable).parent
    os.environ["PATH"] = str(scripts)
    print(f"permutohedral {ph.__version__} from {Path(ph.__file__).parent}")
    print(ph.backends.explain())
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        write_pictures(Path(folder))
        run_snippets()
        for line in ["permutohedral --version", "permutohedral demo", *commands("permutohedral")]:
            print(f"$ {line}", flush=True)
            program, *arguments = shlex.split(line)
            subprocess.run([scripts / program, *arguments], check=True)


if __name__ == "__main__":
    main()
