"""Build the native core with a sanitizer and run its tests: `python tools/sanitize.py address|thread`.

The exit code is that of the tests, or 1 if the sanitizer reported something of the core.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

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
    """Compile, and return the folder to import the package from."""
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
    """Return the path of a library of the sanitizer."""
    compiler = os.environ.get("CXX") or (sysconfig.get_config_var("CXX") or "c++").split()[0]
    return subprocess.run(
        [compiler, f"-print-file-name={name}"], check=True, capture_output=True, text=True
    ).stdout.strip()


def main(kind: str) -> int:
    """Build, test, and print the reports."""
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
    command = [sys.executable, "-c", PROGRAM, "-q", "-p", "no:cacheprovider", "-k", "not triton", *TESTS[kind]]
    run = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    output = run.stdout + run.stderr
    print(output[-6000:])
    logs = "".join(path.read_text(errors="replace") for path in folder.glob("report.*"))
    reports = re.findall(r"WARNING: ThreadSanitizer.*?(?:={18}|\Z)", logs, flags=re.DOTALL)
    ours = [report for report in reports if OURS in report]
    ours += re.findall(r"ERROR: AddressSanitizer.*?SUMMARY|[^\n]*runtime error:[^\n]*", logs, flags=re.DOTALL)
    print("\n".join(ours)[:6000])
    print(f"{len(ours)} reports of the core, {len(reports)} of all libraries")
    return run.returncode or int(bool(ours))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
