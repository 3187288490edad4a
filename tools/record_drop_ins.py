"""Records what other libraries answer to the cases of the tests, in `tests/dropins/`.

    python tools/record_drop_ins.py pydensecrf              # needs pydensecrf2 (pip install pydensecrf2)
    python tools/record_drop_ins.py bilateralfilter RLOSS   # checkout of meng-tang/rloss; needs g++
    python tools/record_drop_ins.py bilateral_solver FILE   # bilateral_solver.py of TokenCut; needs SciPy and Pillow
    python tools/record_drop_ins.py monai MONAI             # checkout of MONAI; needs g++ and torch
    python tools/record_drop_ins.py permutohedral_encoding CHECKOUT   # of roym899/permutohedral_encoding; needs torch
    python tools/record_drop_ins.py measure                 # compares pydensecrf2 with the drop-in on 375 x 500 pixels

The originals are built in a temporary folder. Of permutohedral_encoding (MIT License, Copyright (c) 2023 Leonard Bruns,
2021 University of Bonn) a few of its own test vectors are kept. `bilateralfilter` and `measure` need this package.
"""

from __future__ import annotations

import importlib
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

import dropin_cases as cases  # noqa: E402
import encoding_oracle  # noqa: E402
import pydensecrf_cases  # noqa: E402

# marginals are stored in 16 bits
STEPS = 65535

MONAI_INTERFACE = """
#include <torch/extension.h>
#include "filtering/filtering.h"
PYBIND11_MODULE(_C, m) {
    m.def("bilateral_filter", &BilateralFilter);
    m.def("phl_filter", &PermutohedralFilter);
    m.def("tbf_forward", &TrainableBilateralFilterForward);
    m.def("tjbf_forward", &TrainableJointBilateralFilterForward);
}
"""

Table = dict[str, NDArray[Any]]


def record_pydensecrf() -> Table:
    """Solve the fields of both files of cases."""
    library = pydensecrf()
    answers = [pydensecrf_cases.solve(library.dcrf, case) for case in pydensecrf_cases.CASES]
    table = {name: np.stack([answer[name] for answer in answers]) for name in answers[0]}
    for name, solve in cases.FIELDS.items():
        table[name] = (np.array(solve(library, cases.photo())) * STEPS).round().astype(np.uint16)
    return table


def pydensecrf() -> cases.Library:
    """Return the modules of pydensecrf2."""
    return cases.Library(importlib.import_module("pydensecrf.densecrf"), importlib.import_module("pydensecrf.utils"))


def record_bilateralfilter(checkout: str) -> Table:
    """Filter the planes."""
    from benchmarks.drop_ins import build_rloss

    table, bilateralfilter_batch = {}, build_rloss(checkout)
    for name, planes in cases.PLANES.items():
        images, ins = planes.buffers()
        table[name] = np.zeros_like(ins)
        bilateralfilter_batch(images, ins, table[name], *planes)
    return table


def record_bilateral_solver(file: str) -> Table:
    """Run TokenCut's file, in which newer SciPy needs one name changed."""
    from PIL import Image

    program: dict[str, Any] = {}
    text = Path(file).read_text().replace(", tol=self", ", rtol=self").replace("from skimage.io import imread", "")
    exec(compile(text, file, "exec"), program)
    table = {}
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/photo.png"
        Image.fromarray(cases.photo()).save(path)
        for name, sigmas in cases.SOLVES.items():
            table[f"{name}, soft"], table[f"{name}, binary"] = program["bilateral_solver_output"](
                path, cases.mask(), *sigmas
            )
    return table


def record_monai(checkout: str) -> Table:
    """Compile the filters, which takes minutes, and run them."""
    import torch
    from torch.utils import cpp_extension

    csrc = Path(checkout) / "monai" / "csrc"
    with tempfile.TemporaryDirectory() as folder:
        interface = Path(folder, "interface.cpp")
        interface.write_text(MONAI_INTERFACE)
        libraries = cpp_extension.library_paths()
        flags = [f"-I{path}" for path in (csrc, *cpp_extension.include_paths(), sysconfig.get_paths()["include"])]
        flags += [f"-L{path}" for path in libraries] + [f"-Wl,-rpath,{path}" for path in libraries]
        flags += ["-ltorch", "-ltorch_cpu", "-ltorch_python", "-lc10", "-std=c++20", "-O2", "-fopenmp"]
        files = sorted((csrc / "filtering").rglob("*.cpp"))
        compile_library(Path(folder, "_C.so"), interface, *files, "-DMONAI_TORCH_VERSION=20000", *flags)
        sys.path.insert(0, folder)
        core = importlib.import_module("_C")
    table = {}
    for name, (function, arguments) in cases.FILTERS.items():
        tensors = [torch.from_numpy(each.copy()) if isinstance(each, np.ndarray) else each for each in arguments]
        table[name] = run_monai(core, function, tensors).numpy()
    return table


def run_monai(core: Any, function: str, arguments: list[Any]) -> Any:
    """Call the compiled function behind a layer of MONAI, as the layer does."""
    import torch

    if function == "BilateralFilter":
        return core.bilateral_filter(*arguments)
    if function == "PHLFilter":
        values, features, sigmas = arguments
        scaled = features / torch.tensor(sigmas[: features.shape[1]])[:, None, None]
        return core.phl_filter(values, scaled)
    if function == "CRF":
        logits, reference, (steps, *options) = arguments
        bilateral_weight, gaussian_weight, space, color, gaussian, factor = options
        places = torch.stack(torch.meshgrid(*map(torch.arange, reference.shape[2:]), indexing="ij")).float()[None]
        both, found = torch.cat([places / space, reference / color], dim=1), logits.softmax(dim=1)
        for _ in range(steps):
            messages = bilateral_weight * core.phl_filter(found, both)
            messages = messages + gaussian_weight * core.phl_filter(found, places / gaussian)
            found = (logits + factor * messages).softmax(dim=1)
        return found
    *images, spatial, color = arguments
    sigmas = [torch.tensor(sigma) for sigma in (*spatial, 0.01, 0.01)[:3]] + [torch.tensor(color)]
    images = [image.reshape(*image.shape, *[1] * (5 - image.dim())) for image in images]
    forward = core.tjbf_forward if len(images) > 1 else core.tbf_forward
    return forward(*images, *sigmas)[0].reshape(arguments[0].shape)


def compile_library(library: Path, *arguments: object) -> None:
    """Run g++."""
    subprocess.run(["g++", "-shared", "-fPIC", "-w", "-o", str(library), *map(str, arguments)], check=True)


def record_permutohedral_encoding(checkout: str, num_points: int = 12) -> Table:
    """Select the first points of the test vectors, and the rows of the table that they read."""
    import torch

    folder = Path(checkout) / "tests" / "test_files"
    vectors = {
        path.stem: torch.load(path, map_location="cpu", weights_only=True) for path in sorted(folder.glob("*.pt"))
    }
    table, shifts = vectors["encoding_state_dict"].values()
    positions = vectors["in_points"].detach().numpy()[:num_points]
    read = np.zeros(table.shape[:2], bool)
    for level, sigma in enumerate(np.geomspace(1.0, 1e-4, 24)):
        keys, _ = encoding_oracle.find_simplices((positions.astype(np.longdouble) + shifts[level].numpy()) / sigma)
        read[level, encoding_oracle.hash_keys(keys, table.shape[1])] = True
    return {
        "positions": positions,
        "shifts": shifts.numpy(),
        "rows": np.argwhere(read).astype(np.int16),
        "values": table.detach().numpy()[read],
        "features": vectors["out_features"].detach().numpy()[:num_points],
        "gradient": vectors["in_points_grad"].numpy()[:num_points],
    }


def measure(height: int = 375, width: int = 500) -> None:
    """Print the differences of marginals, and the share of different labels, on three images."""
    import permutohedral.compat.pydensecrf as ours

    found = cases.Library(ours.densecrf, ours.utils)
    for name, solve in cases.FIELDS.items():
        largest, different = 0.0, 0.0
        for seed in range(3):
            expected, answer = (
                np.array(solve(library, cases.photo(height, width, seed))) for library in (pydensecrf(), found)
            )
            largest = max(largest, float(np.abs(expected - answer).max()))
            different = max(different, float((expected.argmax(axis=0) != answer.argmax(axis=0)).mean()))
        print(f"{name:34} marginals {largest:.1e}  labels {different:.4%}", flush=True)


def main() -> None:
    """Record the library that is named."""
    name, *arguments = sys.argv[1:] or ["help"]
    recorders: dict[str, Callable[..., Table]] = {
        "pydensecrf": record_pydensecrf,
        "bilateralfilter": record_bilateralfilter,
        "bilateral_solver": record_bilateral_solver,
        "monai": record_monai,
        "permutohedral_encoding": record_permutohedral_encoding,
    }
    if name == "measure":
        measure()
    elif name in recorders:
        np.savez_compressed(ROOT / "tests" / "dropins" / f"{name}.npz", **recorders[name](*arguments))  # type: ignore[arg-type]
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main()
