"""Features of positions and colors."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import torch

import permutohedral as ph
from permutohedral.errors import InputError


def test_positions_are_in_scan_order() -> None:
    height, width = 3, 4
    features = ph.features.positions((height, width), dtype=torch.float64)
    image = torch.arange(height * width).reshape(height, width)
    for row, (y, x) in enumerate(features.tolist()):
        assert int(image[int(y), int(x)]) == row


def test_position_sigma_may_differ_between_y_and_x() -> None:
    features = ph.features.positions((3, 4), sigma=(2.0, 4.0))
    torch.testing.assert_close(features[-1], torch.tensor([2 / 2.0, 3 / 4.0]))


@pytest.mark.parametrize("sigma", [1e50, (1e50, 2.0)])
def test_positions_of_a_sigma_beyond_float32(sigma: Any) -> None:
    found = ph.features.positions((3, 4), sigma=sigma)
    assert found[:, 0].max() < 1e-38
    assert found.isfinite().all()


def test_positions_have_requested_dtype() -> None:
    assert ph.features.positions((2, 2)).dtype == torch.get_default_dtype()
    assert ph.features.positions((2, 2), dtype=torch.float64).dtype == torch.float64


@pytest.mark.parametrize(("height", "width"), [(0, 5), (5, 0), (0, 0)])
def test_empty_images_have_no_points(height: int, width: int) -> None:
    assert ph.features.positions((height, width)).shape == (0, 2)
    assert ph.features.colors(torch.empty(3, height, width)).shape == (0, 3)


@pytest.mark.parametrize("batch_shape", [(), (2,), (2, 3)])
def test_colors_match_pixels(batch_shape: tuple[int, ...]) -> None:
    image = torch.rand(*batch_shape, 3, 4, 5, dtype=torch.float64)
    features = ph.features.colors(image, sigma=0.5)
    assert features.shape == (*batch_shape, 20, 3)
    torch.testing.assert_close(features[..., 2 * 5 + 3, :], image[..., :, 2, 3] / 0.5)


def test_color_sigma_may_differ_between_channels() -> None:
    features = ph.features.colors(torch.ones(3, 1, 1), sigma=[1.0, 2.0, 4.0])
    assert features.tolist() == [[1.0, 0.5, 0.25]]


def test_gradients_reach_image_and_sigma() -> None:
    image = torch.rand(2, 3, 4, dtype=torch.float64, requires_grad=True)
    sigma = torch.tensor([0.5, 2.0], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(ph.features.colors, (image, sigma))
    ph.features.colors(torch.ones(2, 3, 4, dtype=torch.float64), sigma).sum().backward()
    assert sigma.grad is not None
    torch.testing.assert_close(sigma.grad, -12 / sigma.detach().square())


def test_join_broadcasts_batch_axes() -> None:
    position, color = ph.features.positions((4, 5)), ph.features.colors(torch.rand(2, 3, 3, 4, 5))
    joined = ph.features.join(position, color)
    assert joined.shape == (2, 3, 20, 5)
    assert torch.equal(joined[1, 2, :, :2], position)
    assert torch.equal(joined[..., 2:], color)


def test_join_does_not_import_sympy() -> None:
    """Its import would delay the first call by about a second."""
    code = "import sys, torch, permutohedral as ph; ph.features.join(torch.rand(4, 2), torch.rand(3, 4, 1)); "
    code += "assert 'sympy' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_features_compile_in_one_graph() -> None:
    def features(image: torch.Tensor, sigma: torch.Tensor) -> torch.Tensor:
        position = ph.features.positions(
            (image.shape[-2], image.shape[-1]), 2.0, device=image.device, dtype=image.dtype
        )
        return ph.features.join(position, ph.features.colors(image, sigma))

    image, sigma = torch.rand(2, 3, 4, 5), torch.tensor(0.1)
    compiled = torch.compile(features, fullgraph=True, backend="eager")
    assert torch.equal(compiled(image, sigma), features(image, sigma))


BAD_CALLS: list[tuple[str, tuple[Any, ...], str]] = [
    ("positions", (20,), "space must be the extents.*got 20"),
    ("positions", ((2, -1),), "extent"),
    ("positions", ((2, 2.0),), "extent"),
    ("positions", ((2, True),), "extent"),
    ("positions", ((2, 2), 0.0), "positive"),
    ("positions", ((2, 2), -1.0), "positive"),
    ("positions", ((2, 2), float("nan")), "positive"),
    ("positions", ((2, 2), (1.0, 2.0, 3.0)), "one for each of 2"),
    ("positions", ((2, 2), torch.ones(3)), "one for each of 2"),
    ("bilateral", (torch.rand(4, 5),), r"^guide must be.*guide\[None\]"),
    ("bilateral", (torch.zeros(3, 4, 5).int(),), "^guide of int32 has no rule"),
    ("bilateral", (torch.rand(40, 50, 3),), "^guide must be.*guide.movedim"),
    ("colors", (torch.rand(4, 5),), r"image\[None\]"),
    ("colors", (torch.zeros(3, 4, 5, dtype=torch.bool),), "must be floating, got torch.bool"),
    ("colors", (torch.rand(3, 4, 5), (1.0, 2.0)), "one for each of 3"),
    ("join", (), "at least one"),
    ("join", (torch.rand(3),), "points, dimension"),
    ("join", (torch.rand(3, 2), torch.rand(4, 2)), "numbers of points"),
    ("join", (torch.rand(3, 2), torch.rand(3, 2, dtype=torch.float64)), "dtype"),
    ("join", (torch.rand(3, 4, 2), torch.rand(2, 4, 2)), "broadcast"),
]


@pytest.mark.parametrize(("function", "arguments", "message"), BAD_CALLS)
def test_rejects_bad_input(function: str, arguments: tuple[Any, ...], message: str) -> None:
    sigmas = {"sigma_space": 1.0, "sigma_color": 1.0} if function == "bilateral" else {}
    with pytest.raises(InputError, match=message):
        getattr(ph.features, function)(*arguments, **sigmas)


def test_rejects_integer_dtype() -> None:
    with pytest.raises(InputError, match="floating"):
        ph.features.positions((2, 2), dtype=torch.int64)


@pytest.mark.parametrize("sigma", ["2", ("1", "2"), True, 1j, [1.0 + 0j, 2.0], [True, True]])
def test_rejects_sigma_that_is_no_number(sigma: Any) -> None:
    image = torch.rand(3, 4, 5)
    with pytest.raises(InputError, match=r"^sigma_space must be one number or one for each of 2"):
        ph.features.bilateral(image, sigma_space=sigma, sigma_color=0.1)
    with pytest.raises(InputError, match=r"^sigma must be one number or one for each of 2"):
        ph.features.positions((4, 5), sigma)
    for method in ("lattice", "exact", "auto"):
        with pytest.raises(InputError, match=r"^sigma_color must be one number or one for each of 3"):
            ph.bilateral_filter(image, sigma_space=1.0, sigma_color=sigma, method=method)


@pytest.mark.parametrize("method", ["lattice", "exact", "auto"])
@pytest.mark.parametrize("name", ["sigma_space", "sigma_color"])
def test_errors_name_the_sigma(name: str, method: Any) -> None:
    sigmas: Any = {"sigma_space": 1.0, "sigma_color": 1.0}
    for wrong in (-1.0, 0.0, float("nan"), torch.tensor(-1.0), (1.0, 2.0, 3.0, 4.0), torch.ones(4)):
        with pytest.raises(InputError, match=rf"^{name} must be"):
            ph.bilateral_filter(torch.rand(3, 4, 5), **(sigmas | {name: wrong}), method=method)
