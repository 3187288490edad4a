"""Builds the native core with a sanitizer and runs its tests: `python tools/reliability/sanitize.py address|thread`.

Under "address" every instruction set that the processor has takes part, under "thread" the widest. Writes
`results/reliability/sanitizer-<name>.json`; the exit code is that of the tests.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import sysconfig
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

# what runs under each: threads matter to one of them only, and it is slow
TESTS = {
    "address": [
        "tests/ops/test_native.py",
        "tests/ops/test_native_index.py",
        "tests/ops/test_threads.py",
        "tests/fuzz",
        "tests/ops/test_primitives.py",
        "tests/ops/test_primitives_linear.py",
        "tests/ops/test_native_mean_field.py",
        "tests/ops/test_exact_sums.py",
        "tests/filters/test_color_grid.py",
        "tests/filters/test_landmarks.py",
        "tests/test_pyramid.py",
    ],
    "thread": [
        "tests/ops/test_threads.py",
        "tests/ops/test_native_memory.py",
        "tests/ops/test_native_mean_field.py",
        "tests/filters/test_color_grid.py",
        "tests/reliability/test_interruption.py",
    ],
}
# Python's own memory is never freed at its end; forked children are wanted; pytest shows what is written to files only
OPTIONS = {
    "address": {
        "ASAN_OPTIONS": "detect_leaks=0 log_path={folder}/report.address",
        "UBSAN_OPTIONS": "print_stacktrace=1 log_path={folder}/report.undefined",
    },
    "thread": {"TSAN_OPTIONS": "die_after_fork=0 exitcode=0 suppressions={suppressions} log_path={folder}/report"},
}
RUNTIMES = {"address": ["libasan.so", "libubsan.so"], "thread": ["libtsan.so"]}
# torch and Python were not built with the sanitizer, so that it cannot see how their threads wait for each other; what
# remains of them is counted apart: a report is ours if the core is in one of its stacks
SUPPRESSIONS = "called_from_lib:libtorch_cpu.so\ncalled_from_lib:libgomp\nrace:libtorch\nmutex:libtorch\n"
OURS = "_native."

# an editable installation would bring its own core
PROGRAM = (
    "import sys; sys.meta_path[:] = [f for f in sys.meta_path if 'ScikitBuild' not in type(f).__name__]; "
    "import pytest; sys.exit(pytest.main(sys.argv[1:]))"
)


def build(kind: str, folder: Path) -> Path:
    """Compile; returns the folder to import the package from."""
    tools = Path(sys.executable).parent
    environment = os.environ | {"PATH": f"{tools}:{os.environ['PATH']}"}
    for command in (
        [
            "cmake",
            "-S",
            str(ROOT),
            "-B",
            str(folder),
            f"-DPERMUTOHEDRAL_SANITIZE={kind}",
            f"-DPython_EXECUTABLE={sys.executable}",
        ],
        ["cmake", "--build", str(folder), "--parallel", str(os.cpu_count() or 1)],
    ):
        subprocess.run(command, check=True, env=environment, stdout=subprocess.DEVNULL)
    package = folder / "package" / "permutohedral"
    package.mkdir(parents=True, exist_ok=True)
    for entry in (ROOT / "src" / "permutohedral").iterdir():
        link = package / entry.name
        if entry.suffix != ".so" and not link.exists():
            link.symlink_to(entry)
    for core in folder.glob("_native*.so"):
        link = package / core.name
        link.unlink(missing_ok=True)
        link.symlink_to(core)
    return package.parent


def runtime(name: str) -> str:
    """Where the compiler keeps a sanitizer's library."""
    compiler = os.environ.get("CXX") or (sysconfig.get_config_var("CXX") or "c++").split()[0]
    return subprocess.run(
        [compiler, f"-print-file-name={name}"], check=True, capture_output=True, text=True
    ).stdout.strip()


def instruction_sets(kind: str, environment: dict[str, str]) -> list[str]:
    """The variants of the core that the tests run, under the sanitizer."""
    program = PROGRAM.partition("import pytest")[0] + "from permutohedral import _native; "
    program += "print(*_native.instruction_sets())" if kind == "address" else "print(_native.instruction_set())"
    command = [sys.executable, "-c", program]
    run = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    return run.stdout.split()


def commit() -> str:
    """The commit of the sources, with "+" if files differ from it."""
    command = ["git", "describe", "--always", "--abbrev=9", "--dirty=+", "--exclude=*"]
    return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()


def main(kind: str) -> int:
    """Build, test, write what came out."""
    folder = ROOT / "build" / f"sanitize-{kind}"
    packages = build(kind, folder)
    suppressions = folder / "suppressions.txt"
    suppressions.write_text(SUPPRESSIONS)
    for old in folder.glob("report.*"):
        old.unlink()
    options = {name: value.format(suppressions=suppressions, folder=folder) for name, value in OPTIONS[kind].items()}
    environment = os.environ | options
    environment |= {"LD_PRELOAD": " ".join(runtime(name) for name in RUNTIMES[kind]), "PYTHONPATH": str(packages)}
    environment |= {"OMP_NUM_THREADS": "1", "PYTHONMALLOC": "malloc"}
    started = time.monotonic()
    command = [sys.executable, "-c", PROGRAM, "-q", "-p", "no:cacheprovider", "-k", "not triton", *TESTS[kind]]
    run = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    output = run.stdout + run.stderr
    print(output[-6000:])
    counts = {
        word: int(number) for number, word in re.findall(r"(\d+) (passed|failed|skipped|error)", run.stdout[-400:])
    }
    logs = "".join(path.read_text(errors="replace") for path in folder.glob("report.*"))
    reports = re.findall(r"WARNING: ThreadSanitizer.*?(?:={18}|\Z)", logs, flags=re.DOTALL)
    ours = [report for report in reports if OURS in report]
    ours += re.findall(r"ERROR: AddressSanitizer.*?SUMMARY|[^\n]*runtime error:[^\n]*", logs, flags=re.DOTALL)
    print("\n".join(ours)[:6000])
    result = {
        "sanitizer": kind,
        "commit": commit(),
        "instruction_sets": instruction_sets(kind, environment),
        "tests": counts,
        "reports": len(ours),
        "reports_elsewhere": len(reports) - len([report for report in reports if OURS in report]),
        "exit_code": run.returncode,
        "seconds": round(time.monotonic() - started),
        "command": f"python tools/reliability/sanitize.py {kind}",
    }
    path = ROOT / "results" / "reliability" / f"sanitizer-{kind}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result, indent=2) + "\n")
    return run.returncode or int(bool(ours))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
