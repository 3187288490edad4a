"""Every public function and layer, with small inputs: the table of the tests of layouts, limits and modes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import torch
from support import DEVICE
from torch import Tensor, nn

import permutohedral as ph

# modules whose names are in the table
MODULES = ("accuracy", "apps", "crf", "features", "guided", "lattice", "levels", "nn")
# public names without derivatives, by the reason
NOT_DIFFERENTIABLE = {
    "another module": "apps compat accuracy backends crf errors features guided lattice levels nn",
    "a string": "__version__",
    "a record of sizes or tables": """Lattice lattice.LatticeStatistics lattice.MemoryForecast
        lattice.Neighborhood lattice.Simplices levels.LatticePyramid levels.LevelTables accuracy.ErrorEstimate
        accuracy.MethodChoice""",
    "measures, and returns numbers": """accuracy.estimate_error accuracy.estimate_bilateral_error
        accuracy.explain_bilateral accuracy.explain_gaussian lattice.forecast_memory lattice.reach""",
    "takes integers": "crf.energies_from_labels lattice.gaussian_weight lattice.tap_positions",
    "needs a GPU; tests/gpu": "lattice.build_bounded_lattice levels.build_bounded_pyramid",
    "runs the backward pass itself, and returns detached results": "nn.capture_step",
    "runs without gradients": "apps.Denoiser",
    "reads and writes files": """apps.colorize_image apps.denoise_image apps.fill_map apps.filter_array
        apps.filter_image apps.segment_cloud apps.segment_image apps.smooth_cloud apps.solve_map apps.upsample_map""",
    "a record of files": """apps.DenoisedImage apps.FilteredArray apps.FilteredImage apps.GuidedMap
        apps.SegmentedCloud apps.SegmentedImage apps.SmoothedCloud""",
}
WITHOUT_DERIVATIVES = {name for names in NOT_DIFFERENTIABLE.values() for name in names.split()}


def public_names() -> list[str]:
    """Return the names of `permutohedral` and its modules; those of a module that are also at the top only there."""
    top = list(ph.__all__)
    inside = [
        f"{module}.{name}"
        for module in MODULES
        for name in getattr(ph, module).__all__
        if getattr(ph, name, None) is not getattr(getattr(ph, module), name)
    ]
    return [*top, *inside]


@dataclass(frozen=True, eq=False)
class Input:
    """Numbers of one argument.

    Attributes:
        data: float64, on the CPU.
        role: "values"; "features", "guide" or "fixed features", which make the lattice; "weight" of samples;
            "parameter", without batch axes; "logits", which must differ; "start", which has a positive sum.
        points: axis that may have no points; None if its extent is fixed.
        wide: float32 where others have 16 bits, as features do.
    """

    data: Tensor
    role: str = "values"
    points: int | None = None
    wide: bool = False

    @property
    def differentiable(self) -> bool:
        return self.role != "fixed features"

    @property
    def in_batch(self) -> bool:
        return self.role != "parameter"

    @property
    def varies(self) -> bool:
        """Whether its rows may not be one row expanded: all points would be one."""
        return self.role in ("fixed features", "logits") or (self.role == "features" and self.data.dim() == 2)


Inputs = dict[str, Input]
# roles of inputs that make the lattice, and have derivatives
PLACES = ("features", "guide")


@dataclass(frozen=True, eq=False)
class Case:
    """A call of a public function or layer.

    Attributes:
        call: of the layer, if there is one, and of tensors by name; returns a tensor or several.
        inputs: makes them.
        layer: makes it, in float32 on the CPU.
        batch: takes a leading axis.
        empty: takes zero points; False raises `InputError`, None has a fixed number.
        arrays: also takes NumPy arrays.
        wide: the result has 32 bits where values have 16.
        roundings: error allowed, in multiples of the tolerance of a dtype.
        jumps: where results may differ from those nearby: "facets" of the lattice, "zeros" of values, which are equal,
            "weights" of zero, whose samples are filled.
    """

    call: Callable[..., Any]
    inputs: Callable[[], Inputs]
    layer: Callable[[], nn.Module] | None = None
    batch: bool = True
    empty: bool | None = True
    arrays: bool = False
    wide: bool = False
    roundings: float = 6.0
    jumps: tuple[str, ...] = ()


def _draw(shape: tuple[int, ...], low: float, high: float) -> Tensor:
    # an array of no axes is a number; the device is not the default one
    return torch.from_numpy(np.asarray(np.random.default_rng([len(shape), *shape]).uniform(low, high, shape)))


def values(*shape: int, low: float = -1.0) -> Input:
    return Input(_draw(shape, low, 1), points=-2)


def features(*shape: int, low: float = -2.0, high: float = 2.0) -> Input:
    return Input(_draw(shape, low, high), "features", points=-2, wide=True)


def image(*shape: int, role: str = "values") -> Input:
    return Input(_draw(shape, 0, 1), role, points=-1)


def guide(*shape: int) -> Input:
    return image(*shape, role="guide")


def sample_weight(*shape: int) -> Input:
    return Input(_draw(shape, 0.5, 2), "weight", points=-1)


def parameter(*shape: int, wide: bool = False) -> Input:
    return Input(_draw(shape, 0.5, 1.5), "parameter", wide=wide)


POINTS = 24


def on_points(dimension: int = 2, **others: Input) -> Callable[[], Inputs]:
    return lambda: {"values": values(POINTS, 3), "features": features(POINTS, dimension), **others}


def fixed_features() -> Input:
    return replace(features(POINTS, 2), role="fixed features")


def on_lattice(channels: int = 4, level: int = 0, **others: Input) -> Callable[[], Inputs]:
    """Return the inputs of a function of lattice values: `features` make the lattice."""

    @cache
    def make() -> Inputs:
        given = fixed_features()
        rows = ph.levels.build_pyramid(given.data, 2).levels[level].num_lattice_points
        return {"lattice_values": values(rows, channels), "features": given, **others}

    return make


def on_pixels(**others: Input) -> Callable[[], Inputs]:
    return lambda: {"image": image(3, 5, 6), **others}


def on_maps(**others: Input) -> Callable[[], Inputs]:
    return lambda: {"coarse": image(2, 3, 4), "guide": guide(3, 7, 9), **others}


def on_targets(**others: Input) -> Callable[[], Inputs]:
    return lambda: {"target": image(2, 5, 6), "guide": guide(3, 5, 6), **others}


def pyramid_of(features: Tensor) -> ph.levels.LatticePyramid:
    return ph.levels.build_pyramid(features, 2)


def mean_field_of(energies: Tensor, features: Tensor, compatibility: Tensor | float = 2.0, **options: Any) -> Tensor:
    return ph.crf.mean_field(energies, [ph.crf.Kernel(features, compatibility)], **options)


def mean_field_on_pixels(energies: Tensor, guide: Tensor) -> Tensor:
    return ph.crf.mean_field(
        energies, [ph.crf.bilateral_kernel(guide, sigma_space=2.3, sigma_color=0.4, compatibility=2.0)]
    )


def layer(call: Callable[[], nn.Module], inputs: Callable[[], Inputs], **options: Any) -> Case:
    """Return a case whose call passes all inputs to a layer."""
    return Case(lambda layer, **given: layer(**given), inputs, call, **options)


def on_level(make: Callable[[], nn.Module], level: int = 0) -> Case:
    """Return a case of a layer between the levels of a pyramid."""
    return Case(
        lambda layer, lattice_values, features: layer(lattice_values, pyramid_of(features), 0),
        on_lattice(level=level),
        make,
        batch=False,
    )


FILTERS: dict[str, Case] = {
    "bilateral_filter": Case(
        lambda image: ph.bilateral_filter(image, sigma_space=1.7, sigma_color=0.4),
        on_pixels(),
        arrays=True,
        jumps=("zeros",),
    ),
    "bilateral_filter guided": Case(
        lambda image, guide, sample_weight, sigma: ph.bilateral_filter(
            image, guide, sigma_space=sigma, sigma_color=0.4, halo=1, sample_weight=sample_weight, return_mass=True
        ),
        on_pixels(guide=guide(1, 5, 6), sample_weight=sample_weight(5, 6), sigma=parameter(wide=True)),
    ),
    "bilateral_filter exact": Case(
        lambda image, guide: ph.bilateral_filter(image, guide, sigma_space=1.7, sigma_color=0.4, method="exact"),
        on_pixels(guide=guide(1, 5, 6)),
        arrays=True,
    ),
    "gaussian_filter": Case(ph.gaussian_filter, on_points(), jumps=("facets",)),
    "gaussian_filter weighted": Case(
        lambda **given: ph.gaussian_filter(**given, halo=1, return_mass=True),
        on_points(target_features=features(7, 2), sample_weight=sample_weight(POINTS)),
    ),
    "gaussian_filter dense": Case(
        lambda **given: ph.gaussian_filter(**given, method="dense", halo=1, normalization="none"), on_points()
    ),
    "gaussian_filter exact": Case(lambda **given: ph.gaussian_filter(**given, method="exact"), on_points(3)),
    "gaussian_filter symmetric": Case(
        lambda **given: ph.gaussian_filter(**given, method="exact", normalization="symmetric"), on_points(3)
    ),
    "gaussian_filter items": Case(
        ph.gaussian_filter,
        lambda: {"values": values(2, POINTS, 3), "features": features(2, POINTS, 2)},
        batch=False,
        jumps=("facets",),
    ),
    "permutohedral_filter": Case(ph.permutohedral_filter, on_points(weight=parameter(7, 3, 4))),
    **{
        f"permutohedral_filter {normalization}": Case(
            lambda normalization=normalization, **given: ph.permutohedral_filter(**given, normalization=normalization),
            on_points(weight=parameter(7, 3, 4)),
            jumps=("facets",) if normalization in ("density", "coverage") else (),
        )
        for normalization in ("homogeneous", "symmetric", "density", "coverage")
    },
    "permutohedral_filter items": Case(
        lambda **given: ph.permutohedral_filter(**given, normalization="density"),
        lambda: {
            "values": values(2, POINTS, 3),
            "features": features(2, POINTS, 2),
            "weight": parameter(7, 3, 4),
            "target_features": features(2, 5, 2),
        },
        batch=False,
        jumps=("facets",),
    ),
    "build_lattice": Case(
        lambda features: ph.build_lattice(features).source.barycentric,
        lambda: {"features": features(POINTS, 3)},
        wide=True,
    ),
    "splat": Case(
        lambda values, features: ph.splat(values, ph.build_lattice(features)),
        on_points(),
        batch=False,
        jumps=("facets",),
    ),
    "splat max": Case(
        lambda values, features: ph.splat(values, ph.build_lattice(features), reduce="max"),
        lambda: {"values": values(POINTS, 3), "features": fixed_features()},
        batch=False,
        jumps=("facets", "zeros"),
    ),
    "convolve": Case(
        lambda lattice_values, features, weight: ph.convolve(lattice_values, weight, ph.build_lattice(features)),
        on_lattice(weight=parameter(7, 4, 5)),
        batch=False,
    ),
    "slice": Case(
        lambda lattice_values, features: ph.slice(lattice_values, ph.build_lattice(features)), on_lattice(), batch=False
    ),
    "interpolate": Case(
        ph.interpolate,
        on_points(target_features=features(7, 2), sample_weight=sample_weight(POINTS)),
        batch=False,
        empty=False,
        arrays=True,
        jumps=("facets",),
    ),
    "features.positions": Case(
        lambda sigma: ph.features.positions((3, 4), sigma, device=sigma.device, dtype=sigma.dtype),
        lambda: {"sigma": parameter(2, wide=True)},
        batch=False,
        empty=None,
        wide=True,
    ),
    "features.colors": Case(ph.features.colors, on_pixels(sigma=parameter(3, wide=True))),
    "features.opponent_colors": Case(ph.features.opponent_colors, on_pixels()),
    "features.join": Case(
        lambda **given: ph.features.join(*given.values()),
        lambda: {"first": values(POINTS, 2), "second": values(POINTS, 3)},
    ),
    "features.bilateral": Case(
        lambda image: ph.features.bilateral(image, sigma_space=1.7, sigma_color=0.4), on_pixels(), wide=True
    ),
    "features.bilateral sigma": Case(
        lambda image, sigma: ph.features.bilateral(image, sigma_space=1.7, sigma_color=sigma),
        on_pixels(sigma=parameter(3, wide=True)),
        wide=True,
    ),
    "levels.build_pyramid": Case(
        lambda features: tuple(level.source.barycentric for level in pyramid_of(features).levels),
        lambda: {"features": features(POINTS, 3)},
        wide=True,
    ),
    "levels.coarsen": Case(
        lambda lattice_values, features: ph.levels.coarsen(lattice_values, pyramid_of(features), 0),
        on_lattice(),
        batch=False,
    ),
    "levels.refine": Case(
        lambda lattice_values, features: ph.levels.refine(lattice_values, pyramid_of(features), 0),
        on_lattice(level=1),
        batch=False,
    ),
    "levels.pool": Case(
        lambda lattice_values, features: ph.levels.pool(lattice_values, pyramid_of(features), 0),
        on_lattice(),
        batch=False,
        jumps=("facets", "zeros"),
    ),
    "levels.convolve_down": Case(
        lambda lattice_values, features, weight: ph.levels.convolve_down(
            lattice_values, weight, pyramid_of(features), 0
        ),
        on_lattice(weight=parameter(7, 4, 5)),
        batch=False,
    ),
    "levels.convolve_up": Case(
        lambda lattice_values, features, weight: ph.levels.convolve_up(lattice_values, weight, pyramid_of(features), 0),
        on_lattice(level=1, weight=parameter(7, 4, 5)),
        batch=False,
    ),
}

GUIDED: dict[str, Case] = {
    # few iterations: rounding errors of conjugate gradients grow until they converge
    **{
        f"upsample {mode}": Case(
            lambda mode=mode, **given: ph.upsample(**given, mode=mode, num_iterations=5, ridge=0.1),
            on_maps(sample_weight=sample_weight(3, 4)),
            empty=False,
            arrays=True,
            jumps=() if mode == "solver" else ("weights",),
        )
        for mode in ("solver", "gaussian", "affine")
    },
    "upsample point": Case(
        lambda coarse, guide: ph.upsample(coarse, guide, mode="gaussian", sampling="point", sigma_color=0.4),
        on_maps(),
        empty=False,
    ),
    "guided.Upsampler": Case(
        lambda coarse, guide: ph.guided.Upsampler(guide, (3, 4))(coarse, num_iterations=5),
        on_maps(),
        empty=False,
        arrays=True,
    ),
    "bilateral_solver": Case(
        ph.bilateral_solver,
        on_targets(sample_weight=sample_weight(5, 6), smoothness=parameter(wide=True)),
        empty=False,
        arrays=True,
    ),
    "bilateral_solver cells": Case(
        lambda target, guide: ph.bilateral_solver(target, guide, observe="cells", num_iterations=5),
        lambda: {"target": image(2, 3, 4), "guide": guide(3, 5, 6)},
        empty=False,
        arrays=True,
    ),
}

FIELDS: dict[str, Case] = {
    "crf.Kernel": Case(
        mean_field_of, lambda: {"energies": values(POINTS, 3), "features": features(POINTS, 2)}, jumps=("facets",)
    ),
    "crf.mean_field": Case(
        mean_field_of,
        lambda: {
            "energies": values(POINTS, 3),
            "features": features(POINTS, 2),
            "compatibility": parameter(3, 3, wide=True),
            "start": Input(_draw((POINTS, 3), 0.1, 1.0), "start", points=-2),
        },
        jumps=("facets",),
    ),
    "crf.bilateral_kernel": Case(
        mean_field_on_pixels, lambda: {"energies": image(3, 5, 6), "guide": guide(3, 5, 6)}, jumps=("facets",)
    ),
    "crf.spatial_kernel": Case(
        lambda energies, sigma: ph.crf.mean_field(
            energies, [ph.crf.spatial_kernel((5, 6), sigma, device=sigma.device, dtype=sigma.dtype)]
        ),
        lambda: {"energies": Input(_draw((3, 5, 6), -1, 1)), "sigma": parameter(2, wide=True)},
        empty=None,
    ),
    "crf.free_energy": Case(
        lambda marginals, energies, features: ph.crf.free_energy(
            marginals.softmax(-1), energies, [ph.crf.Kernel(features, 2.0)]
        ),
        lambda: {
            "marginals": values(POINTS, 3),
            "energies": values(POINTS, 3, low=0.0),
            "features": features(POINTS, 2),
        },
        jumps=("facets",),
        wide=True,
    ),
    "crf.energies_from_probabilities": Case(
        ph.crf.energies_from_probabilities, lambda: {"probabilities": values(POINTS, 3, low=0.0)}
    ),
}

# ReLU and normalizations of few numbers
OF_NETWORKS = 60.0

LAYERS: dict[str, Case] = {
    "nn.PermutohedralConv": layer(lambda: ph.nn.PermutohedralConv(3, 4, 2), on_points(), jumps=("facets",)),
    "nn.PermutohedralConv sigma": layer(
        lambda: ph.nn.PermutohedralConv(3, 6, 2, groups=3, learn_sigma=True, normalization="homogeneous"),
        on_points(target_features=features(7, 2), sample_weight=sample_weight(POINTS)),
    ),
    "nn.PermutohedralConv around": layer(
        lambda: ph.nn.PermutohedralConv(3, 3, 2, around="gaussian", normalization="coverage"),
        on_points(),
        jumps=("facets",),
    ),
    "nn.GaussianFilter": layer(lambda: ph.nn.GaussianFilter(2, halo=1, learn_sigma=True), on_points()),
    "nn.BilateralFilter": layer(
        lambda: ph.nn.BilateralFilter(sigma_space=1.7, sigma_color=0.4, learn_sigma=True), on_pixels(), jumps=("zeros",)
    ),
    "nn.BilateralConv1d": layer(
        lambda: ph.nn.BilateralConv1d(2, 4, sigma_space=1.7), lambda: {"image": image(2, 9)}, jumps=("facets", "zeros")
    ),
    "nn.BilateralConv2d": layer(
        lambda: ph.nn.BilateralConv2d(3, 4, guide_channels=1, sigma_space=1.7),
        on_pixels(guide=guide(1, 5, 6)),
        jumps=("facets",),
    ),
    "nn.BilateralConv2d positions": layer(
        lambda: ph.nn.BilateralConv2d(3, 4, guide_channels=0, sigma_space=1.7), on_pixels(), jumps=("facets", "zeros")
    ),
    "nn.BilateralConv3d": layer(
        lambda: ph.nn.BilateralConv3d(1, 4, sigma_space=1.7),
        lambda: {"image": image(1, 3, 4, 5)},
        jumps=("facets", "zeros"),
    ),
    "nn.BilateralUpsample2d": layer(lambda: ph.nn.BilateralUpsample2d(2, 3, learn_sigma=True), on_maps(), empty=False),
    "nn.BilateralSolver": layer(lambda: ph.nn.BilateralSolver(learn_sigma=True), on_targets(), empty=False),
    "nn.DenseCRF": layer(
        lambda: ph.nn.DenseCRF(3, compatibility="matrix", learn_sigma=True, sigma_smoothness=2.9, sigma_color=0.4),
        # equal logits are an unstable equilibrium
        lambda: {"logits": image(3, 5, 6, role="logits"), "guide": guide(3, 5, 6)},
        jumps=("facets",),
    ),
    "nn.DenseEnergyLoss": layer(
        lambda: ph.nn.DenseEnergyLoss(sigma_space=3.1, sigma_color=0.4, weight=1.0),
        lambda: {
            "images": Input(_draw((2, 3, 6, 8), 0, 1), "fixed features", points=0),
            "probabilities": Input(_draw((2, 3, 6, 8), 0, 1), points=0),
        },
        wide=True,
        batch=False,
        empty=False,
    ),
    "nn.PermutohedralEncoding": layer(
        lambda: ph.nn.PermutohedralEncoding(3, 4, 2, 64, sigmas=(0.9, 0.5, 0.3, 0.2), include_input=True),
        lambda: {"positions": features(POINTS, 3, low=0.0, high=1.0)},
    ),
    "nn.LatticeConv": Case(
        lambda layer, lattice_values, features: layer(lattice_values, ph.build_lattice(features)),
        on_lattice(),
        lambda: ph.nn.LatticeConv(4, 5, 2),
        batch=False,
    ),
    "nn.LatticeGroupNorm": Case(
        lambda layer, lattice_values, features: layer(lattice_values, ph.build_lattice(features), relu=True),
        on_lattice(),
        lambda: ph.nn.LatticeGroupNorm(2, 4),
        batch=False,
        jumps=("zeros",),
    ),
    "nn.LatticeItems": Case(
        lambda lattice_values, features: ph.nn.LatticeItems(ph.build_lattice(features), 1).mean(lattice_values),
        on_lattice(),
        batch=False,
    ),
    "nn.LatticeConvDown": on_level(lambda: ph.nn.LatticeConvDown(4, 5, 2)),
    "nn.LatticeConvUp": on_level(lambda: ph.nn.LatticeConvUp(4, 5, 2), level=1),
    "nn.LatticeLinearDown": on_level(lambda: ph.nn.LatticeLinearDown(4, 5, 2)),
    "nn.LatticeLinearUp": on_level(lambda: ph.nn.LatticeLinearUp(4, 5), level=1),
    "nn.LatticePool": replace(on_level(ph.nn.LatticePool), jumps=("facets", "zeros")),
    "nn.LatticeUNet": Case(
        lambda layer, values, features: layer(values, features),
        on_points(),
        lambda: ph.nn.LatticeUNet(3, 2, 2, step=1.0, widths=(4, 8)),
        roundings=OF_NETWORKS,
        jumps=("facets",),
    ),
    "apps.PointSegmenter": Case(
        lambda layer, values, positions: layer(
            values, positions, torch.zeros(len(values), dtype=torch.int64, device=values.device)
        ),
        lambda: {"values": values(POINTS, 2), "positions": features(POINTS, 3)},
        lambda: ph.apps.PointSegmenter(2, 3, channels=(4, 8)),
        batch=False,
        roundings=OF_NETWORKS,
        jumps=("facets",),
    ),
}

CASES = FILTERS | GUIDED | FIELDS | LAYERS


def make_layer(case: Case, dtype: torch.dtype) -> nn.Module | None:
    """Return the layer of a case on the device; its parameters are the same numbers, rounded to the dtype."""
    if case.layer is None:
        return None
    # torch.manual_seed takes milliseconds
    torch.default_generator.manual_seed(0)
    return case.layer().to(DEVICE, dtype)


def call(case: Case, layer: nn.Module | None, given: dict[str, Any]) -> list[Any]:
    """Return the results of a case as a list."""
    results = case.call(**given) if layer is None else case.call(layer, **given)
    return list(results) if isinstance(results, tuple) else [results]


Layout = Callable[[Tensor], Tensor]


def transposed(tensor: Tensor) -> Tensor:
    axes = tuple(reversed(range(tensor.dim())))
    return tensor.permute(axes).contiguous().permute(axes)


def sliced(tensor: Tensor) -> Tensor:
    """Every second number of a larger tensor, with a storage offset."""
    if tensor.dim() == 0:
        return torch.stack([torch.full_like(tensor, torch.nan), tensor])[1]
    large = tensor.new_full([2 * extent + 1 for extent in tensor.shape], torch.nan)
    view = large[(slice(1, None, 2),) * tensor.dim()]
    return view.copy_(tensor)


def expanded(tensor: Tensor) -> Tensor:
    """The first row in place of all, with a stride of zero."""
    return tensor[:1].expand(tensor.shape) if tensor.dim() else tensor


def one_number(tensor: Tensor) -> Tensor:
    """As the gradient of a sum: all strides are zero."""
    return tensor.new_ones(()).expand(tensor.shape)


def as_given(tensor: Tensor) -> Tensor:
    return tensor


def upstream_of(output: Tensor) -> Tensor:
    """Incoming gradient of an output: numbers of six bits, which every dtype holds."""
    numbers = np.random.default_rng(output.numel()).integers(-64, 65, tuple(output.shape)) / 64
    return torch.from_numpy(np.asarray(numbers)).to(output)


def run(
    case: Case,
    dtype: torch.dtype,
    layouts: tuple[Layout, Layout] = (as_given, as_given),
    *,
    exact: bool = False,
    autocast: bool = False,
    inputs: Inputs | None = None,
    layer: nn.Module | None = None,
    gradients: str = "all",
) -> dict[str, Tensor]:
    """Return results and gradients; with `exact` in contiguous float64, of the same numbers.

    `gradients` are "all", those of "values" and parameters on lattices without derivatives, those of "parameters", or
    "none": backends have other functions for each.
    """
    layout, upstream_layout = layouts
    layer = make_layer(case, dtype) if layer is None else layer
    if layer is not None and exact:
        layer = layer.double()
    given = {}
    for name, each in (case.inputs() if inputs is None else inputs).items():
        numbers = each.data.to(DEVICE, torch.float32 if each.wide and dtype.itemsize < 4 else dtype)
        numbers = numbers if layout is expanded and each.varies else layout(numbers)
        numbers = numbers.double().contiguous() if exact else numbers
        wanted = gradients == "all" or (gradients == "values" and each.role not in PLACES)
        given[name] = numbers.detach().requires_grad_(wanted and each.differentiable)
    with torch.autocast(DEVICE.type, torch.bfloat16, enabled=autocast), torch.set_grad_enabled(gradients != "none"):
        outputs = call(case, layer, given)
    found = {f"result {number}": output.detach() for number, output in enumerate(outputs)}
    differentiable = [output for output in outputs if output.requires_grad]
    if not differentiable:
        return found
    leaves = {name: tensor for name, tensor in given.items() if tensor.requires_grad}
    if layer is not None:
        leaves |= {name: each for name, each in layer.named_parameters() if each.requires_grad}
    upstream = [upstream_layout(upstream_of(output)) for output in differentiable]
    upstream = [each.contiguous() for each in upstream] if exact else upstream
    computed = torch.autograd.grad(differentiable, [*leaves.values()], upstream)
    return found | {f"gradient of {name}": each for name, each in zip(leaves, computed, strict=True)}


def largest(tensor: Tensor) -> float:
    return float(tensor.detach().abs().max()) if tensor.numel() else 0.0


def assert_alike(
    found: dict[str, Tensor], expected: dict[str, Tensor], typical: dict[str, Tensor], tolerance: float, hint: str
) -> None:
    """Compare what was found, relative to the largest number expected.

    It is also relative to that of `typical` inputs, since sums may be zero but for rounding.
    """
    errors = {}
    for name, each in found.items():
        assert each.shape == expected[name].shape, f"{hint}: {name}"
        scale = max(largest(expected[name]), largest(typical[name]), torch.finfo(torch.float32).tiny)
        error = largest(each.double() - expected[name].double()) / scale
        if not error <= tolerance:
            errors[name] = f"{error:.3g}"
    assert not errors, f"{hint}: relative errors beyond {tolerance:.3g}: {errors}"
