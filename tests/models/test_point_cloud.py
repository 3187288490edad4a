from __future__ import annotations

import pytest
import torch
from support import DEVICE, relative_error
from torch import nn

from permutohedral.data.solids import make_clouds
from permutohedral.errors import InputError
from permutohedral.models.point_cloud import PermutohedralClassifier, PointwiseClassifier, build_classifier, pool_points


def models() -> dict[str, nn.Module]:
    torch.manual_seed(0)
    return {
        "position": PermutohedralClassifier(8, channels=(4, 5, 6), hidden=4),
        "values": PermutohedralClassifier(8, "position", "position_normal", (4, 5, 6), hidden=4),
        "position_normal": PermutohedralClassifier(8, "position_normal", channels=(4, 4, 4), hidden=4),
        "pointwise": PointwiseClassifier(8, "position_normal", (4, 5), hidden=4),
    }


@pytest.mark.parametrize("name", models())
def test_clouds_of_a_batch_do_not_mix(name: str) -> None:
    model = models()[name].to(DEVICE).eval()
    clouds = make_clouds(5, seed=0)
    with torch.no_grad():
        together = model(*(part.to(DEVICE) for part in (clouds.positions, clouds.normals, clouds.item)))
        for number in range(5):
            alone = clouds.select(torch.tensor([number]))
            scores = model(*(part.to(DEVICE) for part in (alone.positions, alone.normals, alone.item)))
            # sums over lattice points in another order
            assert relative_error(scores[0], together[number]) < 1e-4
    assert together.shape == (5, 8)


@pytest.mark.parametrize("name", models())
def test_every_weight_learns(name: str) -> None:
    model, clouds = models()[name], make_clouds(12, seed=0)
    loss = nn.functional.cross_entropy(model(clouds.positions, clouds.normals, clouds.item), clouds.labels)
    loss.backward()
    assert [name for name, weight in model.named_parameters() if weight.grad is None or not weight.grad.any()] == []


def test_the_order_of_the_points_does_not_matter() -> None:
    model, clouds = models()["position_normal"].eval(), make_clouds(3, seed=0)
    order = torch.randperm(len(clouds.item))
    with torch.no_grad():
        expected = model(clouds.positions, clouds.normals, clouds.item)
        shuffled = model(clouds.positions[order], clouds.normals[order], clouds.item[order])
    assert relative_error(shuffled, expected) < 1e-4


def test_normals_matter_only_where_they_are_asked_for() -> None:
    clouds = make_clouds(3, seed=0)
    for name, model in models().items():
        model.eval()
        with torch.no_grad():
            scores = [model(clouds.positions, normals, clouds.item) for normals in (clouds.normals, -clouds.normals)]
        assert (relative_error(scores[1], scores[0]) > 1e-3) == (name != "position")


def test_pooling_joins_what_is_near_and_never_items() -> None:
    features = torch.tensor([[0.0, 0.0], [0.05, 0.0], [0.0, 0.0], [5.0, 5.0]], device=DEVICE)
    values = torch.tensor([[1.0, -4.0], [2.0, -5.0], [9.0, 9.0], [3.0, 3.0]], device=DEVICE)
    item = torch.tensor([0, 0, 1, 0], device=DEVICE)
    pooled, means, items = pool_points(values, features, item, step=1.0)
    found = {(int(i), *v.tolist(), *m.tolist()) for i, v, m in zip(items, pooled, means, strict=True)}
    near = (0, 2.0, -4.0, pytest.approx(0.025), 0.0)
    assert len(found) == 3
    assert any(entry == near for entry in found)
    assert (1, 9.0, 9.0, 0.0, 0.0) in found
    assert (0, 3.0, 3.0, 5.0, 5.0) in found


def test_gradients_of_pooling_reach_the_largest_only() -> None:
    values = torch.tensor([[1.0], [2.0]], requires_grad=True)
    pool_points(values, torch.zeros(2, 2), torch.zeros(2, dtype=torch.int64), 1.0)[0].sum().backward()
    assert values.grad is not None
    assert values.grad.flatten().tolist() == [0.0, 1.0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"features": "color"}, "features must be 'position'"),
        ({"channels": []}, "channels must give"),
        ({"chanels": [4]}, "options of the model permutohedral do not fit"),
    ],
)
def test_options_that_do_not_fit_are_told(options: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        build_classifier("permutohedral", 8, options)
