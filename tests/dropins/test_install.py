"""`compat.install` and `python -m permutohedral.compat`: imports, workers, devices and errors."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

INSTALL = "import permutohedral as ph; ph.compat.install"


def run(*command: str, cwd: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PERMUTOHEDRAL_")}
    return subprocess.run(
        [sys.executable, *command], capture_output=True, text=True, check=False, cwd=cwd, env=clean | variables
    )


def test_imports_find_the_drop_in(tmp_path: Path) -> None:
    program = f"""{INSTALL}("pydensecrf"); ph.compat.install("pydensecrf", "simplecrf")
import sys
import pydensecrf.densecrf as dcrf
from pydensecrf.utils import unary_from_labels
import pydensecrf.eigen, pydensecrf, denseCRF, denseCRF3D
ph.compat.install("bilateralfilter", "bilateral_solver")
from bilateralfilter import bilateralfilter, bilateralfilter_batch
from bilateral_solver import bilateral_solver_output, BilateralSolver, BilateralGrid
assert pydensecrf.densecrf is dcrf is sys.modules["pydensecrf.densecrf"]
assert "torch" not in sys.modules
print(dcrf.DenseCRF(3, 2).inference(1).shape, unary_from_labels.__module__, denseCRF.__name__)"""
    found = run("-c", program, cwd=tmp_path)
    assert found.stdout.strip() == (
        "(2, 3) permutohedral.compat.pydensecrf.utils permutohedral.compat.simplecrf.denseCRF"
    ), found.stderr


def test_layers_of_monai_are_replaced_in_its_package(tmp_path: Path) -> None:
    """MONAI itself stays: its packages re-export the layers from the modules that are replaced."""
    files = {"layers/filtering": "raise ImportError('built with BUILD_MONAI=1')", "blocks/crf": "raise ImportError"}
    files |= {"layers/__init__": "from .filtering import *", "blocks/__init__": "from .crf import CRF", "__init__": ""}
    for name, text in files.items():
        path = tmp_path / "monai" / "networks" / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    program = f"""{INSTALL}("monai")
from monai.networks.layers import BilateralFilter, PHLFilter, TrainableBilateralFilter, TrainableJointBilateralFilter
from monai.networks.blocks import CRF
from monai.networks.layers.filtering import PHLFilter as again
assert again is PHLFilter
print(BilateralFilter.__module__, CRF.__module__)"""
    found = run("-c", program, cwd=tmp_path)
    assert found.stdout.split() == ["permutohedral.compat.monai"] * 2, found.stderr


@pytest.mark.parametrize(
    ("statements", "message"),
    {
        "unknown name": (f'{INSTALL}("opencv")', "names must be among pydensecrf, "),
        "already imported": (f'import pydensecrf; {INSTALL}("pydensecrf")', "pydensecrf is already imported"),
        "no such GPU": (f'{INSTALL}("pydensecrf", device="cuda:99")', "device must exist, got cuda:99"),
        "no such device": (f'{INSTALL}("pydensecrf", device="gpu")', "device must be a torch device"),
        "wrong type": (f'{INSTALL}("pydensecrf", device=1.5)', "device must be a torch device"),
        "variable": (
            "import os; os.environ['PERMUTOHEDRAL_DEVICE'] = 'cuda:99'; from permutohedral.compat.pydensecrf import "
            "densecrf; densecrf.DenseCRF(3, 2).inference(1)",
            "PERMUTOHEDRAL_DEVICE must exist, got cuda:99",
        ),
    }.values(),
)
def test_rejects_what_cannot_work(statements: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "pydensecrf.py").touch()
    found = run("-c", statements, cwd=tmp_path)
    assert found.returncode == 1
    assert "InputError: " + message in found.stderr


PROGRAM = """
import sys
from pathlib import Path
import helper_of_the_program
import pydensecrf.densecrf as dcrf
assert __name__ == "__main__" and Path(__file__).name == "program.py"
print(sys.argv[1:], Path(sys.path[0]).name, dcrf.__name__)
sys.exit(3)
"""


def test_only_originals_and_their_copies_are_replaced(tmp_path: Path) -> None:
    """vit-tf has a module bilateral_solver with other functions, also when it is imported before."""
    sources = {
        "bilateralfilter": "def bilateralFilter(image): pass",
        "bilateral_solver": "class BilateralGrid: pass\ndef apply_bilateral_solver(t, r): pass",
        "denseCRF": "from pydensecrf import densecrf",
    }
    for name, source in sources.items():
        (tmp_path / f"{name}.py").write_text(source)
    program = "import bilateralfilter, denseCRF; print(bilateralfilter.__file__, denseCRF.__file__)"
    found = run("-c", f"import bilateral_solver; {INSTALL}(); {program}", cwd=tmp_path)
    assert found.stdout.split() == [str(tmp_path / f"{name}.py") for name in ("bilateralfilter", "denseCRF")], found
    # SWIG's module, and a copy of the notebook that fails with newer versions of SciPy
    (tmp_path / "bilateralfilter.py").write_text("import absent\ndef bilateralfilter_batch(*args): pass")
    (tmp_path / "bilateral_solver.py").write_text("import absent\ndef bilateral_solver_output(img, target): pass")
    program = "import bilateralfilter, bilateral_solver; print(bilateralfilter.__name__, bilateral_solver.__name__)"
    found = run("-c", f"{INSTALL}(); {program}", cwd=tmp_path)
    replaced = ["permutohedral.compat.bilateralfilter", "permutohedral.compat.bilateral_solver"]
    assert found.stdout.split() == replaced, found.stderr


@pytest.mark.parametrize("options", [(), ("--only", "pydensecrf,simplecrf")])
def test_runs_a_program_as_python_does(options: tuple[str, ...], tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "program.py").write_text(PROGRAM)
    (folder / "helper_of_the_program.py").touch()
    found = run("-m", "permutohedral.compat", *options, "folder/program.py", "--only", "x", "-m", cwd=tmp_path)
    assert found.stdout.split("\n")[0] == "['--only', 'x', '-m'] folder permutohedral.compat.pydensecrf.densecrf", found
    assert found.returncode == 3


def test_runs_a_module_as_python_does(tmp_path: Path) -> None:
    (tmp_path / "test_field.py").write_text(
        "import sys, pydensecrf.densecrf as dcrf\n"
        "def test_field(): print(sys.argv[1:], sys.path[0] != '', dcrf.__name__)\n"
    )
    command = ["-m", "permutohedral.compat", "--only", "pydensecrf", "-m", "pytest", "-q", "-s", "--only", "x"]
    (tmp_path / "conftest.py").write_text("def pytest_addoption(parser): parser.addoption('--only')\n")
    found = run(*command, cwd=tmp_path)
    assert "['-q', '-s', '--only', 'x'] True permutohedral.compat.pydensecrf.densecrf" in found.stdout, found
    assert found.returncode == 0


@pytest.mark.parametrize(
    ("command", "message"),
    {
        ("-m", "absent"): "got absent, which does not exist",
        ("-m", "absent.module"): "got absent.module, which does not exist",
        ("absent.py",): "program must be a file, or -m and a module, got absent.py",
        ("--only", "opencv", "."): "names must be among",
        (): "program is missing",
    }.items(),
)
def test_wrong_commands_show_the_usage(command: tuple[str, ...], message: str, tmp_path: Path) -> None:
    found = run("-m", "permutohedral.compat", *command, cwd=tmp_path)
    assert found.returncode == 2
    assert message in found.stderr
    assert "Traceback" not in found.stderr


def test_wrong_device_in_the_environment_shows_the_usage(tmp_path: Path) -> None:
    found = run("-m", "permutohedral.compat", ".", cwd=tmp_path, PERMUTOHEDRAL_DEVICE="cuda:99")
    assert found.returncode == 2
    assert "device must exist, got cuda:99" in found.stderr


# a module next to the program, which spawned workers import by name
FIELD = """
import os
import numpy as np
import pydensecrf.densecrf as dcrf
from pydensecrf.utils import unary_from_labels

def solve(rank):
    image, labels = np.zeros((6, 8, 3), np.uint8), np.arange(48).reshape(6, 8) % 2
    field = dcrf.DenseCRF2D(8, 6, 2)
    field.setUnaryEnergy(unary_from_labels(labels, 2, gt_prob=0.7, zero_unsure=False))
    field.addPairwiseGaussian(sxy=3, compat=3)
    field.addPairwiseBilateral(sxy=50, srgb=5, rgbim=np.ascontiguousarray(np.copy(image)), compat=10)
    labels = np.argmax(field.inference(10), axis=0)
    # one write, which other workers do not interrupt
    os.write(1, f"{rank} {os.environ['PERMUTOHEDRAL_DEVICE']} {labels.shape}\\n".encode())
"""
WORKERS = {
    "spawn": "import torch\ntorch.multiprocessing.spawn(field.solve, nprocs=2)",
    "fork": "import multiprocessing\n"
    "with multiprocessing.get_context('fork').Pool(2) as pool: pool.map(field.solve, range(2))",
    "joblib": "import joblib\njoblib.Parallel(n_jobs=2)(joblib.delayed(field.solve)(rank) for rank in range(2))",
    "subprocess": "import subprocess, sys\n"
    "for rank in range(2): subprocess.run([sys.executable, '-c', f'import field; field.solve({rank})'], check=True)",
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", WORKERS)
def test_workers_inherit_the_drop_ins(kind: str, tmp_path: Path) -> None:
    """IRN spawns with torch, deeplab-pytorch and AFA use joblib."""
    if kind == "joblib":
        pytest.importorskip("joblib", reason="joblib is not installed")
    (tmp_path / "field.py").write_text(FIELD)
    body = "\n    ".join(WORKERS[kind].split("\n"))
    (tmp_path / "program.py").write_text(f"import field\nif __name__ == '__main__':\n    {body}\n")
    found = run("-m", "permutohedral.compat", "program.py", cwd=tmp_path, PERMUTOHEDRAL_DEVICE="cpu")
    assert sorted(found.stdout.split("\n")[:-1]) == ["0 cpu (48,)", "1 cpu (48,)"], found.stderr
    assert not found.stderr


def test_sitecustomize_of_the_user_still_runs(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("name = 'user'\n")
    (tmp_path / "child.py").write_text(
        "import sitecustomize, pydensecrf; print(sitecustomize.name, pydensecrf.__name__)"
    )
    program = f"{INSTALL}(); import subprocess, sys; subprocess.run([sys.executable, 'child.py'], check=True)"
    found = run("-c", program, cwd=tmp_path, PYTHONPATH=str(tmp_path))
    assert found.stdout.split() == ["user", "permutohedral.compat.pydensecrf"], found.stderr


@pytest.mark.parametrize(("names", "module"), [("", "pydensecrf"), ("pydensecrf", "permutohedral.compat.pydensecrf")])
def test_empty_variable_installs_nothing(names: str, module: str, tmp_path: Path) -> None:
    import permutohedral.compat

    workers = Path(permutohedral.compat.__file__).parent / "workers"
    (tmp_path / "pydensecrf.py").touch()
    (tmp_path / "program.py").write_text("import pydensecrf; print(pydensecrf.__name__)")
    found = run("program.py", cwd=tmp_path, PYTHONPATH=str(workers), PERMUTOHEDRAL_COMPAT=names)
    assert found.stdout.strip() == module, found.stderr
