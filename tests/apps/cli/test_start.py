"""Start of the command: help without torch, and Ctrl-C at any moment."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

COMMAND = "from permutohedral.__main__ import main; main()"
# names on stderr, at the end, all modules that the command has loaded
LISTED_MODULES = f"import atexit, sys; atexit.register(lambda: print(*sys.modules, file=sys.stderr)); {COMMAND}"
SLOW_TO_LOAD = {"torch", "numpy", "PIL", "matplotlib", "rich", "nicegui"}
# sends Ctrl-C to this process when the module named by the first argument is imported
INTERRUPTED_IMPORT = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)

class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == module:
            sys.meta_path.remove(self)
            os.kill(os.getpid(), signal.SIGINT)

module = sys.argv.pop(1)
sys.meta_path.insert(0, Interrupt())
from permutohedral.__main__ import main
main()
"""


def run(*arguments: str, code: str = COMMAND, **variables: str) -> tuple[int, str, str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), **variables}
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, env=environment, check=False
    )
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("module", ["typer", "permutohedral.apps.cli.application", "torch._C", "torch.nn", "PIL"])
def test_ctrl_c_while_modules_are_loaded(module: str, tmp_path: Path) -> None:
    source, output = tmp_path / "a.png", tmp_path / "b.png"
    Image.new("RGB", (8, 9)).save(source)
    assert run(module, "image", "filter", str(source), str(output), code=INTERRUPTED_IMPORT) == (
        130,
        "",
        "interrupted\n",
    )
    assert not output.exists()


def test_ctrl_c_while_an_image_is_filtered(tmp_path: Path) -> None:
    source, output = tmp_path / "a.png", tmp_path / "b.png"
    Image.new("RGB", (8, 9)).save(source)
    code = (
        "import os, signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
        "from permutohedral.filters import tiling; "
        "tiling.filter_pixels = lambda *_, **__: os.kill(os.getpid(), signal.SIGINT); "
        "from permutohedral.__main__ import main; main()"
    )
    assert run("image", "filter", str(source), str(output), code=code) == (130, "", "interrupted\n")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.png"]


def test_ctrl_c_stays_ignored_in_a_background_job() -> None:
    code = (
        "import os, signal; signal.signal(signal.SIGINT, signal.SIG_IGN); "
        "from permutohedral.__main__ import main; os.kill(os.getpid(), signal.SIGINT); main()"
    )
    returncode, stdout, _ = run("--version", code=code)
    assert returncode == 0
    assert stdout.startswith("permutohedral ")


@pytest.mark.parametrize("arguments", [["--version"], ["--help"], ["image", "filter", "--help"]], ids=" ".join)
def test_help_does_not_load_slow_modules(arguments: list[str]) -> None:
    returncode, _, loaded = run(*arguments, code=LISTED_MODULES)
    assert returncode == 0
    assert not SLOW_TO_LOAD & set(loaded.split())


def test_completion_does_not_load_slow_modules() -> None:
    words = {"_PERMUTOHEDRAL_COMPLETE": "complete_bash", "COMP_WORDS": "permutohedral ima", "COMP_CWORD": "1"}
    _, answer, loaded = run(code=LISTED_MODULES, **words)
    assert answer.split() == ["image"]
    assert not SLOW_TO_LOAD & set(loaded.split())


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full here")
@pytest.mark.parametrize(
    "arguments", [["--version"], ["--help"], ["image", "filter", "--help"], ["backends", "--json"]]
)
def test_full_disk_behind_stdout_is_one_line(arguments: list[str]) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "permutohedral", *arguments],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert (done.returncode, done.stderr) == (
        1,
        "error: cannot write to stdout: No space left on device; send it elsewhere\n",
    )


@pytest.mark.parametrize(
    "command",
    [
        "permutohedral --help", "permutohedral backends --json", "benchmarks --list", "experiments --list",
        "experiments mnist --list",
    ],
)  # fmt: skip
def test_closed_pipe_prints_nothing(command: str) -> None:
    """Such as `| head -2`: the reader has enough."""
    reading, writing = os.pipe()
    os.close(reading)
    with open(writing, "w") as gone:
        done = subprocess.run(
            [sys.executable, "-m", *command.split()],
            cwd=Path(__file__).resolve().parents[3],
            stdout=gone,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert (done.returncode, done.stderr) == (1, "")
