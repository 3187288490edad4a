"""The drop-in for bilateral_solver.py: recorded results, the notebook's classes, hostile inputs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dropin_cases import SOLVES, mask, photo
from PIL import Image
from scipy import ndimage

from permutohedral.compat.bilateral_solver import BilateralGrid, BilateralSolver, bilateral_solver_output, bistochastize
from permutohedral.errors import InputError

RECORDED = np.load(Path(__file__).parent / "bilateral_solver.npz")
PARAMETERS = {"lam": 128, "A_diag_min": 1e-5, "cg_tol": 1e-5, "cg_maxiter": 25}


@pytest.mark.parametrize("name", SOLVES)
def test_agrees_with_recorded_results(name: str, tmp_path: Path) -> None:
    Image.fromarray(photo()).save(tmp_path / "photo.png")
    space, luma, chroma = SOLVES[name]
    soft, binary = bilateral_solver_output(
        str(tmp_path / "photo.png"), mask(), sigma_spatial=space, sigma_luma=luma, sigma_chroma=chroma
    )
    assert soft.dtype == np.float64
    assert binary.dtype == np.bool_
    np.testing.assert_allclose(soft, RECORDED[f"{name}, soft"], rtol=1e-3)
    assert (binary == RECORDED[f"{name}, binary"]).mean() >= 0.9999
    again = bilateral_solver_output(None, mask().astype(np.uint8), *SOLVES[name], img=Image.fromarray(photo()))
    np.testing.assert_array_equal(again[0], soft)


def test_masks_count_components() -> None:
    """The second largest part counts; holes are filled; all components but the largest are FOUND's other choice."""
    blank = np.zeros((40, 60, 3), np.uint8)
    blank[5:15, 5:15] = blank[20:38, 30:55] = 255
    target = (blank[..., 0] > 0).astype(float)
    target[25:28, 40:43] = 0
    _, binary = bilateral_solver_output(None, target, 24, 4, 4, img=blank)
    expected = np.zeros((40, 60), bool)
    expected[20:38, 30:55] = True
    np.testing.assert_array_equal(binary, expected)
    _, everything = bilateral_solver_output(None, target, 24, 4, 4, img=blank, get_all_cc=True)
    np.testing.assert_array_equal(everything, blank[..., 0] > 0)
    _, nothing = bilateral_solver_output(None, np.zeros((40, 60)), img=blank)
    assert nothing.all()


def test_takes_images_as_programs_pass_them() -> None:
    """DeepCut and UnSegGNet pass arrays; DiffNCuts and TokenCut_video also bandwidths; SelfMask an image by name."""
    expected = bilateral_solver_output(None, mask(), img=photo())
    for found in (
        bilateral_solver_output(photo(), mask()),
        bilateral_solver_output(photo(), mask(), 24, 4, 4),
        bilateral_solver_output(img=Image.fromarray(photo()), target=mask()),
    ):
        np.testing.assert_array_equal(found[0], expected[0])
        np.testing.assert_array_equal(found[1], expected[1])


def test_masks_of_another_size_are_resized() -> None:
    """As move-seg does with OpenCV: between the centers of pixels, where the border is repeated."""
    small = mask()[::2, ::2].astype(np.float32)
    y, x = ((np.arange(extent) + 0.5) / 2 - 0.5 for extent in photo().shape[:2])
    rows = np.stack([np.interp(y, np.arange(len(small)), column) for column in small.T], axis=1)
    large = np.stack([np.interp(x, np.arange(rows.shape[1]), row) for row in rows])
    expected = bilateral_solver_output(photo(), large, sigma_spatial=16, sigma_luma=16, sigma_chroma=8)
    found = bilateral_solver_output(photo(), small, sigma_spatial=16, sigma_luma=16, sigma_chroma=8)
    np.testing.assert_allclose(found[0], expected[0], atol=1e-6)


def test_threshold_keeps_all_regions() -> None:
    """OIParts passes it as the sixth argument."""
    target = np.zeros((30, 40))
    target[2:12, 2:12] = target[15:28, 20:38] = 1
    target[20:23, 28:30] = 0
    image = np.repeat((255 * target[..., None]).astype(np.uint8), 3, axis=2)
    for threshold in (0.2, 0.9):
        soft, binary = bilateral_solver_output(image, target, 10, 9, 3, threshold)
        np.testing.assert_array_equal(binary, ndimage.binary_fill_holes(soft > threshold))
        assert binary[:15, :15].any()
        assert binary[15:, 15:].any()


def dense(grid: BilateralGrid, operation: str, size: int) -> Any:
    return np.stack([getattr(grid, operation)(column) for column in np.eye(size)], axis=1)


def test_grid_matches_its_definition() -> None:
    """Cells are compared by their coordinates, pair by pair."""
    image = photo(6, 8)
    grid = BilateralGrid(image, sigma_spatial=3, sigma_luma=16, sigma_chroma=16)
    splat, slice_, blur = (
        dense(grid, name, size)
        for name, size in (("splat", grid.npixels), ("slice", grid.nvertices), ("blur", grid.nvertices))
    )
    np.testing.assert_array_equal(splat, slice_.T)
    np.testing.assert_array_equal(splat.sum(axis=0), 1)
    weights = np.array([[0.299, 0.587, 0.114], [-0.168736, -0.331264, 0.5], [0.5, -0.418688, -0.081312]])
    yuv = image.reshape(-1, 3) @ weights.T + [0, 128, 128]
    y, x = np.indices((6, 8)).reshape(2, -1)
    cells = (np.column_stack([x / 3, y / 3, yuv / 16])).astype(int)
    corners = np.array([cells[np.flatnonzero(row)[0]] for row in splat])
    distances = np.abs(corners[:, None] - corners[None]).sum(axis=-1)
    np.testing.assert_array_equal(blur, 10 * (distances == 0) + (distances == 1))


def test_bistochastic_blur_keeps_constants() -> None:
    grid = BilateralGrid(photo())
    scale, mass = bistochastize(grid)
    np.testing.assert_allclose(scale * grid.blur(scale), mass)
    constant = np.full((grid.npixels, 2), 3.0)
    solved = BilateralSolver(grid, PARAMETERS).solve(constant, np.ones((grid.npixels, 1)))
    np.testing.assert_allclose(solved, constant, rtol=1e-4)
    np.testing.assert_allclose(grid.filter(constant), constant)


def test_pixels_without_confidence_are_filled() -> None:
    """The notebook starts at 0 / 0 in cells without confidence, and returns NaN."""
    grid = BilateralGrid(photo(), sigma_spatial=4, sigma_luma=64, sigma_chroma=64)
    confidence = np.zeros(grid.npixels)
    confidence[::7] = 1
    target = np.where(confidence > 0, 2.0, -100.0)[:, None]
    solved = BilateralSolver(grid, PARAMETERS | {"cg_maxiter": 500}).solve(target, confidence)
    np.testing.assert_allclose(solved, 2, rtol=1e-2)


@pytest.mark.parametrize(
    ("change", "message"),
    {
        "flat target": ({"target": np.zeros(1200)}, r"target must be \(height, width\)"),
        "empty target": ({"target": np.zeros((0, 40))}, r"target must be \(height, width\)"),
        "no target": ({"target": None}, "img_pth and target must be passed"),
        "NaN": ({"target": np.full((30, 40), np.nan)}, "finite"),
        "gray image": ({"img": photo()[..., 0]}, "im must be RGB"),
        "empty": ({"img": photo()[:0], "target": np.zeros((0, 40))}, "im must be RGB"),
        "zero sigma": ({"sigma_luma": 0}, "sigma_luma must be positive"),
        "NaN sigma": ({"sigma_spatial": np.nan}, "sigma_spatial must be positive"),
        "tiny sigma": ({"sigma_chroma": 1e-300}, "too many cells"),
        "no image": ({"img": None}, "img_pth and target must be passed"),
    }.values(),
)
def test_rejects_hostile_arguments(change: dict[str, Any], message: str) -> None:
    given = {"img_pth": None, "target": mask(), "img": photo()} | change
    with pytest.raises(InputError, match=message):
        bilateral_solver_output(**given)
