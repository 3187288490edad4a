"""Coverage-guided fuzzing: atheris mutates bytes, hypothesis makes calls of them, every backend must agree.

`python tools/fuzz/run_bytes.py [seconds]`; without atheris, bytes are drawn at random from a fixed seed. Writes
`results/reliability/fuzz-bytes.json`; the exit code tells whether something was found, and atheris keeps the input.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
RESULT = ROOT / "results" / "reliability" / "fuzz-bytes.json"
TESTS = {
    "fuzz.test_backends_agree": ("test_learned_filters", "test_gaussians", "test_gradients"),
    "fuzz.test_primitives_agree": ("test_index_keys", "test_find_neighbors", "test_splat_and_slice"),
}
# how often the number of inputs is written down: atheris ends its process without a word
OFTEN = 50


class Target:
    """Takes bytes: the first names the test, the others are what it draws."""

    def __init__(self, tests: list[Callable[[bytes], object]], counter: Path) -> None:
        self.tests, self.counter, self.executed = tests, counter, 0

    def __call__(self, content: bytes) -> None:
        if not content:
            return
        self.tests[content[0] % len(self.tests)](content[1:])
        self.executed += 1
        if self.executed % OFTEN == 0:
            self.counter.write_text(str(self.executed))


def search(seconds: int, counter: Path) -> None:
    """Feed bytes until the time is over."""
    try:
        import atheris
    except ImportError:
        atheris = None
    # branches of the package guide the search
    with nullcontext() if atheris is None else atheris.instrument_imports(include=["permutohedral"]):
        modules = {name: importlib.import_module(name) for name in TESTS}
    tests = [getattr(modules[name], test).hypothesis.fuzz_one_input for name, names in TESTS.items() for test in names]
    target = Target(tests, counter)
    generator, end = random.Random(0), time.monotonic() + seconds
    if atheris is not None:
        with tempfile.TemporaryDirectory() as corpus:
            # hypothesis makes nothing of few bytes
            for number in range(100):
                (Path(corpus) / str(number)).write_bytes(generator.randbytes(1000))
            options = [f"-max_total_time={seconds}", "-max_len=4096", "-len_control=0", "-verbosity=0"]
            # instrumented code keeps 0.3 MB for each input; the same inputs without instrumentation keep nothing
            options.append("-rss_limit_mb=8192")
            atheris.Setup([sys.argv[0], *options, corpus], target)
            atheris.Fuzz()
    while time.monotonic() < end:
        target(generator.randbytes(generator.choice([16, 256, 2048])))


def main(seconds: int) -> int:
    """Search in a child, and write how many inputs it came through."""
    RESULT.parent.mkdir(parents=True, exist_ok=True)
    counter = RESULT.with_suffix(".count")
    counter.write_text("0")
    code = subprocess.run([sys.executable, __file__, "search", str(seconds), str(counter)], check=False).returncode
    guided = importlib.util.find_spec("atheris") is not None
    result = {
        "command": f"python tools/fuzz/run_bytes.py {seconds}",
        "guided_by": "atheris" if guided else "nothing: atheris is not installed",
        "inputs": int(counter.read_text()),
        "seconds": seconds,
        "exit_code": code,
    }
    counter.unlink()
    RESULT.write_text(json.dumps(result, indent=2) + "\n")
    print(result)
    return code


if __name__ == "__main__":
    sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "src")]
    if sys.argv[1:2] == ["search"]:
        search(int(sys.argv[2]), Path(sys.argv[3]))
    else:
        sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 600))
