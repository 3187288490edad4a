"""Fuzz with coverage: atheris mutates bytes, hypothesis turns them into calls, and backends must agree.

`python tools/fuzz_bytes.py [seconds]`; without atheris, bytes are drawn at random from a fixed seed. A failing
input ends the process with an error.
"""

from __future__ import annotations

import importlib
import random
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TESTS = {
    "fuzz.test_backends_agree": ("test_learned_filters", "test_gaussians", "test_gradients"),
    "fuzz.test_primitives_agree": ("test_index_keys", "test_find_neighbors", "test_splat_and_slice"),
}


class Target:
    """Run a test on bytes: the first selects the test, the others are its random choices."""

    def __init__(self, tests: list[Callable[[bytes], object]]) -> None:
        self.tests = tests

    def __call__(self, content: bytes) -> None:
        if content:
            self.tests[content[0] % len(self.tests)](content[1:])


def main(seconds: int) -> None:
    """Feed bytes until the time is over."""
    try:
        import atheris
    except ImportError:
        atheris = None
    # branches of the package guide the search
    with nullcontext() if atheris is None else atheris.instrument_imports(include=["permutohedral"]):
        modules = {name: importlib.import_module(name) for name in TESTS}
    tests = [getattr(modules[name], test).hypothesis.fuzz_one_input for name, names in TESTS.items() for test in names]
    target = Target(tests)
    generator, end = random.Random(0), time.monotonic() + seconds
    if atheris is not None:
        with tempfile.TemporaryDirectory() as corpus:
            # hypothesis needs many bytes for one call
            for number in range(100):
                (Path(corpus) / str(number)).write_bytes(generator.randbytes(1000))
            options = [f"-max_total_time={seconds}", "-max_len=4096", "-len_control=0", "-verbosity=0"]
            # instrumented code keeps 0.3 MB for each input
            options.append("-rss_limit_mb=8192")
            atheris.Setup([sys.argv[0], *options, corpus], target)
            atheris.Fuzz()
    while time.monotonic() < end:
        target(generator.randbytes(generator.choice([16, 256, 2048])))


if __name__ == "__main__":
    sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "src")]
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 600)
