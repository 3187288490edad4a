"""Features of positions and colors."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import permutohedral.lattice.features as features_module
from permutohedral.errors import InputError
from permutohedral.filters.bilateral import bilateral_filter
from permutohedral.lattice.features import bilateral as bilateral_features
from permutohedral.lattice.features import colors as color_features
from permutohedral.lattice.features import join as join_features
from permutohedral.lattice.features import positions as grid_features


def test_positions_are_in_scan_order() -> None:
    height, width = 3, 4
    features = grid_features((height, width), dtype=torch.float64)
    image = torch.arange(height * width).reshape(height, width)
    for row, (y, x) in enumerate(features.tolist()):
        assert int(image[int(y), int(x)]) == row


def test_position_sigma_may_differ_between_y_and_x() -> None:
    features = grid_features((3, 4), sigma=(2.0, 4.0))
    torch.testing.assert_close(features[-1], torch.tensor([2 / 2.0, 3 / 4.0]))


def test_positions_have_requested_dtype() -> None:
    assert grid_features((2, 2)).dtype == torch.get_default_dtype()
    assert grid_features((2, 2), dtype=torch.float64).dtype == torch.float64


@pytest.mark.parametrize(("height", "width"), [(0, 5), (5, 0), (0, 0)])
def test_empty_images_have_no_points(height: int, width: int) -> None:
    assert grid_features((height, width)).shape == (0, 2)
    assert color_features(torch.empty(3, height, width)).shape == (0, 3)


@pytest.mark.parametrize("batch_shape", [(), (2,), (2, 3)])
def test_colors_match_pixels(batch_shape: tuple[int, ...]) -> None:
    image = torch.rand(*batch_shape, 3, 4, 5, dtype=torch.float64)
    features = color_features(image, sigma=0.5)
    assert features.shape == (*batch_shape, 20, 3)
    torch.testing.assert_close(features[..., 2 * 5 + 3, :], image[..., :, 2, 3] / 0.5)


def test_color_sigma_may_differ_between_channels() -> None:
    features = color_features(torch.ones(3, 1, 1), sigma=[1.0, 2.0, 4.0])
    assert features.tolist() == [[1.0, 0.5, 0.25]]


def test_gradients_reach_image_and_sigma() -> None:
    image = torch.rand(2, 3, 4, dtype=torch.float64, requires_grad=True)
    sigma = torch.tensor([0.5, 2.0], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(color_features, (image, sigma))
    color_features(torch.ones(2, 3, 4, dtype=torch.float64), sigma).sum().backward()
    assert sigma.grad is not None
    torch.testing.assert_close(sigma.grad, -12 / sigma.detach().square())


def test_join_broadcasts_batch_axes() -> None:
    position, color = grid_features((4, 5)), color_features(torch.rand(2, 3, 3, 4, 5))
    joined = join_features(position, color)
    assert joined.shape == (2, 3, 20, 5)
    assert torch.equal(joined[1, 2, :, :2], position)
    assert torch.equal(joined[..., 2:], color)


def test_features_compile_in_one_graph() -> None:
    def features(image: torch.Tensor, sigma: torch.Tensor) -> torch.Tensor:
        position = grid_features((image.shape[-2], image.shape[-1]), 2.0, device=image.device, dtype=image.dtype)
        return join_features(position, color_features(image, sigma))

    image, sigma = torch.rand(2, 3, 4, 5), torch.tensor(0.1)
    compiled = torch.compile(features, fullgraph=True, backend="eager")
    assert torch.equal(compiled(image, sigma), features(image, sigma))


BAD_CALLS: list[tuple[str, tuple[Any, ...], str]] = [
    ("position_features", (-1, 2), "height"),
    ("position_features", (2, 2.0), "width"),
    ("position_features", (2, True), "width"),
    ("position_features", (2, 2, 0.0), "positive"),
    ("grid_features", (20,), "space must be the extents.*got 20"),
    ("grid_features", ((2, -1),), "extent"),
    ("bilateral_features", (torch.rand(4, 5), 1.0, 1.0), "^guide must be.*guide.unsqueeze"),
    ("bilateral_features", (torch.zeros(3, 4, 5).byte(), 1.0, 1.0), "^guide must be floating"),
    ("bilateral_features", (torch.rand(40, 50, 3), 1.0, 1.0), "^guide must be.*guide.movedim"),
    ("position_features", (2, 2, -1.0), "positive"),
    ("position_features", (2, 2, float("nan")), "positive"),
    ("position_features", (2, 2, (1.0, 2.0, 3.0)), "one for each of 2"),
    ("position_features", (2, 2, torch.ones(3)), "one for each of 2"),
    ("color_features", (torch.rand(4, 5),), "unsqueeze"),
    ("color_features", (torch.zeros(3, 4, 5, dtype=torch.uint8),), "255"),
    ("color_features", (torch.rand(3, 4, 5), (1.0, 2.0)), "one for each of 3"),
    ("join_features", (), "at least one"),
    ("join_features", (torch.rand(3),), "points, dimension"),
    ("join_features", (torch.rand(3, 2), torch.rand(4, 2)), "numbers of points"),
    ("join_features", (torch.rand(3, 2), torch.rand(3, 2, dtype=torch.float64)), "dtype"),
    ("join_features", (torch.rand(3, 4, 2), torch.rand(2, 4, 2)), "broadcast"),
]


@pytest.mark.parametrize(("function", "arguments", "message"), BAD_CALLS)
def test_rejects_bad_input(function: str, arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(InputError, match=message):
        getattr(features_module, function)(*arguments)


def test_rejects_integer_dtype() -> None:
    with pytest.raises(InputError, match="floating"):
        grid_features((2, 2), dtype=torch.int64)


@pytest.mark.parametrize("sigma", ["2", ("1", "2"), True, 1j, [1.0 + 0j, 2.0], [True, True]])
def test_rejects_sigma_that_is_no_number(sigma: Any) -> None:
    image = torch.rand(3, 4, 5)
    with pytest.raises(InputError, match=r"^sigma_space must be one number or one for each of 2"):
        bilateral_features(image, sigma_space=sigma, sigma_color=0.1)
    with pytest.raises(InputError, match=r"^sigma must be one number or one for each of 2"):
        grid_features((4, 5), sigma)
    for method in ("lattice", "exact", "auto"):
        with pytest.raises(InputError, match=r"^sigma_color must be one number or one for each of 3"):
            bilateral_filter(image, sigma_space=1.0, sigma_color=sigma, method=method)


@pytest.mark.parametrize("method", ["lattice", "exact", "auto"])
@pytest.mark.parametrize("name", ["sigma_space", "sigma_color"])
def test_errors_name_the_sigma(name: str, method: Any) -> None:
    sigmas: Any = {"sigma_space": 1.0, "sigma_color": 1.0}
    for wrong in (-1.0, torch.tensor(-1.0), (1.0, 2.0, 3.0, 4.0), torch.ones(4)):
        with pytest.raises(InputError, match=rf"^{name} must be"):
            bilateral_filter(torch.rand(3, 4, 5), **(sigmas | {name: wrong}), method=method)
