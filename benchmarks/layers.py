"""Workloads of learned filters: layers, convolutions on lattice points, training steps, U-Nets."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

import permutohedral as ph
from benchmarks.filters import problems_of
from benchmarks.inputs import FilterProblem, Inputs, large_photo, sphere_points
from benchmarks.registry import OURS, Absent, Contender, Prepared, Workload, yardstick
from experiments.quality import relative_error

REFERENCE = "our reference backend"
CHANNELS, HEIGHT, WIDTH = 32, 321, 481

# dtype of the values, and whether products of float32 may be rounded to TF32
PRECISIONS = {
    "fp32": (torch.float32, False),
    "tf32": (torch.float32, True),
    "bf16": (torch.bfloat16, False),
}


@contextmanager
def precision(name: str) -> Iterator[torch.dtype]:
    """Set torch's switches for a precision of `PRECISIONS`, and yield its dtype."""
    dtype, rounded = PRECISIONS[name]
    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = rounded
    try:
        yield dtype
    finally:
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = before


def _in_float64(lattice: ph.Lattice) -> ph.Lattice:
    """Return the same lattice with weights in float64, so that points near a face stay on their side of it."""
    source = replace(lattice.source, barycentric=lattice.source.barycentric.double())
    return replace(lattice, source=source, target=source)


def _prepare_learned(inputs: Inputs, backward: bool) -> Prepared:
    """Filter 32 to 32 channels with 15 taps on the lattice of `sphere-1m`, forward or backward."""
    problem = problems_of("sphere-1m", inputs)[0]
    lattice = ph.build_lattice(problem.features, neighborhood_size=1)
    weight = torch.randn(15, 32, 32, generator=torch.Generator().manual_seed(0)) / (15 * 32) ** 0.5
    leaves = (problem.values.detach().requires_grad_(backward), weight.requires_grad_(backward))
    gradient = torch.ones_like(problem.values)
    kept: dict[str, Tensor] = {}

    def forward() -> Tensor:
        return ph.permutohedral_filter(leaves[0], lattice, leaves[1])

    def error(output: Tensor) -> float:
        exact = ph.build_lattice(problem.features.double(), neighborhood_size=1)
        truth = ph.permutohedral_filter(leaves[0].double(), exact, leaves[1].double())
        return relative_error(output, truth)

    def contender(name: str, backend: str | None) -> Contender:
        def run(number: int) -> Any:
            with ph.backends.use(backend):
                return torch.autograd.grad(kept["output"], leaves, gradient) if backward else forward()

        def before(number: int) -> None:
            with ph.backends.use(backend):
                kept["output"] = forward()

        return Contender(
            name, run, before if backward else None, error=None if backward else error, is_peer=backend is None
        )

    return Prepared(contender(OURS, None), [contender(REFERENCE, "reference")], problem.origin)


def _prepare_reference(inputs: Inputs, of_photo: bool) -> Prepared:
    """Filter a photo of 512 x 512 pixels, or train a layer on 20,000 points, on both backends of the CPU."""
    if of_photo:
        problems = large_photo(inputs, (16.0, 0.1), side=512).variants()
    else:
        problems = FilterProblem(sphere_points(20_000, 10.8), torch.randn(20_000, CHANNELS), "seeded points").variants()
    layer = ph.nn.PermutohedralConv(CHANNELS, CHANNELS, 3)

    def run(number: int) -> Any:
        given = problems[number % len(problems)]
        if given.image is not None:
            return ph.bilateral_filter(given.image, sigma_space=given.sigmas[0], sigma_color=given.sigmas[1])
        output = layer(given.values.requires_grad_(), given.features)
        return torch.autograd.grad(output.sum(), [given.values, *layer.parameters()])

    def run_reference(number: int) -> Any:
        with ph.backends.use("reference"):
            return run(number)

    return Prepared(Contender(OURS, run), [yardstick(REFERENCE, run_reference)], problems[0].origin, num_inputs=3)


def _prepare_image_layer(
    inputs: Inputs, training: bool, batch: int = 1, precision_name: str = "fp32", reused: bool = True
) -> Prepared:
    """Run a layer of 32 to 32 channels with 19 taps over images of 481 x 321 pixels, next to Conv2d 5 x 5."""
    dtype = PRECISIONS[precision_name][0]
    options: dict[str, Any] = {"device": inputs.device, "dtype": dtype}
    torch.manual_seed(0)
    images = torch.randn(batch, CHANNELS, HEIGHT, WIDTH).to(**options)
    layer = ph.nn.PermutohedralConv(CHANNELS, CHANNELS, 2, 2, normalization="none", **options)
    convolutions = [nn.Conv2d(CHANNELS, CHANNELS, 5, padding=2, **options) for _ in range(2)]
    # a layout, which torch's annotations of Module.to do not know
    convolutions[1].to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    features = ph.features.positions((HEIGHT, WIDTH), device=inputs.device).expand(batch, -1, -1).contiguous()
    lattice = ph.build_lattice(features, neighborhood_size=2)
    exact = _in_float64(lattice)

    def permutohedral(module: nn.Module, values: Tensor) -> Any:
        if values.dtype is torch.float64:
            return module(values, exact)
        return module(values, lattice) if reused else module(values, features)

    make = partial(_layer_contender, training=training, precision_name=precision_name)
    values = images.flatten(2).transpose(1, 2).contiguous()
    by_channels = images.contiguous(memory_format=torch.channels_last)
    others: list[Contender | Absent] = [
        make("Conv2d 5x5", convolutions[0], images, lambda module, given: module(given)),
        make("Conv2d 5x5 channels-last", convolutions[1], by_channels, lambda module, given: module(given)),
    ]
    return Prepared(make(OURS, layer, values, permutohedral), others, "seeded random channels")


def _layer_contender(
    name: str,
    module: nn.Module,
    given: Tensor,
    call: Callable[[nn.Module, Tensor], Any],
    training: bool,
    precision_name: str,
) -> Contender:
    # other values in every call
    several = [(given.roll(shift, 0 if given.shape[0] > 1 else 1)).detach() for shift in range(3)]
    several = [each.requires_grad_(training) for each in several]
    gradient = torch.ones_like(call(module, given))

    def run(number: int) -> Any:
        chosen = several[number % len(several)]
        # the switches of precision are those of GPUs
        with precision(precision_name) if chosen.is_cuda else nullcontext():
            if not training:
                with torch.no_grad():
                    return call(module, chosen)
            output = call(module, chosen)
            return torch.autograd.grad(output, [chosen, *module.parameters()], gradient.to(output.dtype))

    def error(output: Tensor) -> float:
        with torch.no_grad():
            truth = call(copy.deepcopy(module).double(), several[0].double())
        return relative_error(output, truth)

    version = None if name == OURS else str(torch.__version__)
    return Contender(name, run, error=None if training else error, version=version)


_RUNS_IN_A_GRAPH = 10


def _graphed(run: Callable[[], Any]) -> Callable[[int], Any]:
    """Record several runs as one CUDA graph, so that the time of the host does not count."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            run()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(_RUNS_IN_A_GRAPH):
            output = run()

    def replay(number: int) -> Any:
        graph.replay()
        return output

    return replay


def _prepare_convolution(inputs: Inputs, channels: int, precision_name: str) -> Prepared:
    """Convolve on the lattice of a sphere, 15 taps, in nanoseconds per lattice point and tap."""
    problem = problems_of("build-sphere", inputs)[0]
    lattice = ph.build_lattice(problem.features, neighborhood_size=1)
    rows, filter_size = lattice.num_lattice_points, lattice.neighborhood.filter_size
    generator = torch.Generator().manual_seed(0)
    shapes = ((rows, channels), (filter_size, channels, channels))
    with precision(precision_name) as dtype:
        values, weight = (torch.randn(shape, generator=generator).to(inputs.device, dtype) for shape in shapes)
    weight /= (filter_size * channels) ** 0.5

    def run() -> Any:
        with precision(precision_name):
            return ph.convolve(values, weight, lattice)

    def error(output: Any) -> float:
        with ph.backends.use("reference"):
            return relative_error(output, ph.convolve(values.double(), weight.double(), _in_float64(lattice)))

    ours = Contender(OURS, _graphed(run), error=error, note="replayed from a CUDA graph")
    return Prepared(ours, (), problem.origin, per_second=1e9 / (rows * filter_size * _RUNS_IN_A_GRAPH))


# positions [points, 3], values [points, channels] and items of each point
Cloud = tuple[Tensor, Tensor, Tensor]


def _draw_uniform(counts: Tensor, extent: float, draw: torch.Generator) -> Tensor:
    return extent * torch.rand(int(counts.sum()), 3, generator=draw)


def _draw_hills(counts: Tensor, extent: float, draw: torch.Generator) -> Tensor:
    """Draw hills with trees, as in laser scans."""
    points = int(counts.sum())
    ground = extent * torch.rand(points, 2, generator=draw)
    height = 3 * (ground / 9).sin().sum(dim=1) + 0.1 * torch.randn(points, generator=draw)
    tree = 12 * torch.rand(points, generator=draw) * (torch.rand(points, generator=draw) < 0.3)
    return torch.column_stack([ground, height + tree])


class Kind(NamedTuple):
    """A network of the training steps, and its clouds.

    Attributes:
        make: the network, whose layers are called in turn if it is a list.
        items: clouds in a batch.
        points: of a cloud.
        channels: of its values.
        draw: its positions.
        extent: of the positions.
        num_levels: of the pyramid, None for one lattice.
    """

    make: Callable[[], nn.Module]
    items: int
    points: int
    channels: int
    draw: Callable[[Tensor, float, torch.Generator], Tensor] = _draw_uniform
    extent: float = 20.0
    num_levels: int | None = None

    def draw_cloud(self, draw: torch.Generator, device: torch.device, changing: bool) -> Cloud:
        """Draw a batch of clouds; the numbers of points change by up to 5 % if `changing`."""
        spread = self.points // 20 if changing else 0
        counts = torch.randint(self.points - spread, self.points + spread + 1, (self.items,), generator=draw)
        items = torch.repeat_interleave(torch.arange(self.items), counts).int()
        positions = self.draw(counts, self.extent, draw)
        values = torch.randn(len(items), self.channels, generator=draw)
        return positions.to(device), values.to(device), items.to(device)


def make_unet(in_channels: int) -> nn.Module:
    """Return the U-Net of the workloads for 3 classes, on features: four levels of 16 to 64 channels."""
    return ph.nn.LatticeUNet(in_channels, 3, step=1.0, widths=(16, 32, 48, 64))


KINDS = {
    "layer": Kind(lambda: nn.ModuleList([ph.nn.PermutohedralConv(16, 32, dimension=3)]), 1, 40_000, 16),
    "three-layers": Kind(
        lambda: nn.ModuleList(ph.nn.PermutohedralConv(32, 32, 3) for _ in range(3)), 8, 2_300, 32, extent=8.0
    ),
    "unet": Kind(lambda: make_unet(4), 8, 20_000, 4, _draw_hills, 57.0, num_levels=4),
}


def _forward(module: nn.Module, lattice: Any, values: Tensor) -> Tensor:
    """Run a U-Net on a pyramid, or layers on a lattice or, without a lattice, on values alone."""
    if not isinstance(module, nn.ModuleList):
        result: Tensor = module(values, pyramid=lattice)
        return result
    for layer in module:
        values = layer(values) if lattice is None else layer(values, lattice)
        values = torch.relu(values) if len(module) > 1 else values
    return values


def _build(kind: Kind, positions: Tensor, items: Tensor | None) -> Any:
    if kind.num_levels is None:
        return ph.build_lattice(positions, batch=items)
    return ph.levels.build_pyramid(positions, kind.num_levels, batch=items)


def _make_trainer(module: nn.Module, autocast: bool) -> Callable[[Callable[[], Tensor]], None]:
    """Return a function that runs a step of training, given the forward pass."""
    optimizer = torch.optim.SGD(module.parameters(), lr=1e-3)
    device = next(module.parameters()).device.type

    def train(forward: Callable[[], Tensor]) -> None:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(device, torch.bfloat16, enabled=autocast):
            loss = forward().float().square().mean()
        loss.backward()
        optimizer.step()

    return train


def _linear_step(kind: Kind, clouds: list[Cloud]) -> Contender:
    """Train `Linear` in place of the layers, on the same values."""
    widths = [layer.get_parameter("weight").shape[1:] for layer in kind.make().children()]
    linear = nn.ModuleList(nn.Linear(*each) for each in widths).to(clouds[0][0].device)
    train = _make_trainer(linear, autocast=False)
    name = "Linear" if len(widths) == 1 else f"{len(widths)} x (Linear, ReLU)"
    return yardstick(name, lambda number: train(lambda: _forward(linear, None, clouds[number % len(clouds)][1])))


def _prepare_step(inputs: Inputs, kind: Kind, autocast: bool = False, reused: bool = False) -> Prepared:
    """Train on clouds that change; the lattice is built in every step, or `reused`."""
    torch.manual_seed(0)
    draw, device = torch.Generator().manual_seed(0), inputs.device
    module = kind.make().to(device)
    train = _make_trainer(module, autocast)
    clouds = [kind.draw_cloud(draw, device, changing=True) for _ in range(40 if device.type == "cuda" else 3)]
    lattices = [_build(kind, positions, items) for positions, _, items in clouds] if reused else []

    def run(number: int, forward: Callable[..., Tensor] = _forward, reused: bool = reused) -> None:
        which = number % len(clouds)
        positions, values, items = clouds[which]
        lattice = lattices[which] if reused else None
        train(lambda: forward(module, lattice or _build(kind, positions, items), values))

    others = []
    if reused:
        others = [yardstick("lattice built", partial(run, reused=False))]
    if kind.num_levels is None and not autocast:
        others.append(_linear_step(kind, clouds))
    if kind.items > 1 and kind.num_levels is None and device.type == "cuda":
        compiled = torch.compile(_forward)
        others.append(yardstick("compiled", partial(run, forward=compiled)))
    return Prepared(Contender(OURS, run), others, "seeded clouds", num_inputs=len(clouds))


def prepare_captured(inputs: Inputs, kind: Kind, autocast: bool = False) -> Prepared:
    """Train on clouds of one size that change, by `capture_step`, next to the same step without capture."""
    torch.manual_seed(0)
    draw, device = torch.Generator().manual_seed(0), inputs.device
    module = kind.make().to(device)
    train = _make_trainer(module, autocast)
    flat = [kind.draw_cloud(draw, device, changing=False) for _ in range(40 if device.type == "cuda" else 3)]
    clouds = [
        (positions.view(kind.items, kind.points, 3), values.view(kind.items, kind.points, -1))
        for positions, values, _ in flat
    ]

    def run_step(lattice: Any, values: Tensor) -> None:
        train(lambda: _forward(module, lattice, values))

    def run_eager(number: int) -> None:
        positions, values = clouds[number % len(clouds)]
        run_step(_build(kind, positions, None), values)

    step = ph.nn.capture_step(run_step, num_levels=kind.num_levels)
    # the host of the first steps is not what is measured
    for cloud in clouds[:4]:
        step(*cloud)
    ours = Contender(OURS, lambda number: step(*clouds[number % len(clouds)]))
    others = [yardstick("not captured", run_eager)]
    if kind.num_levels is None:
        others.append(_linear_step(kind, flat))
    return Prepared(ours, others, "seeded clouds", num_inputs=len(clouds))


def _prepare_unet(inputs: Inputs, pyramid_only: bool) -> Prepared:
    """Run the U-Net without gradients, or build the pyramid of its points, next to one lattice of them."""
    torch.manual_seed(0)
    kind, device = KINDS["unet"], inputs.device
    network = kind.make().to(device).eval()
    draw = torch.Generator().manual_seed(0)
    clouds = [kind.draw_cloud(draw, device, changing=True) for _ in range(40 if device.type == "cuda" else 3)]

    def run(number: int) -> Any:
        positions, values, items = clouds[number % len(clouds)]
        if pyramid_only:
            return _build(kind, positions, items)
        with torch.no_grad():
            return network(values, positions, items)

    def build_one(number: int) -> Any:
        positions, _, items = clouds[number % len(clouds)]
        return ph.build_lattice(positions, batch=items)

    others = [yardstick("one lattice", build_one)] if pyramid_only else []
    return Prepared(Contender(OURS, run), others, "seeded clouds", num_inputs=len(clouds))


_IMAGE_LAYER = "layer 32 to 32 channels, 19 taps"
_ROWS: tuple[tuple[str, str, str, str, Callable[[Inputs], Prepared]], ...] = (
    (
        "learned-forward",
        "learned 32 to 32 channels, 15 taps, on a million points near a sphere, lattice reused, forward",
        "cpu",
        "layers",
        partial(_prepare_learned, backward=False),
    ),
    (
        "learned-backward",
        "the same, backward: gradients of values and filter",
        "cpu",
        "layers",
        partial(_prepare_learned, backward=True),
    ),
    (
        "reference-photo",
        "bilateral filter, 512 x 512 photo, 16 pixels / 0.1",
        "cpu",
        "layers",
        partial(_prepare_reference, of_photo=True),
    ),
    (
        "reference-layer",
        "layer 32 to 32 channels, 20,000 points, forward and backward",
        "cpu",
        "layers",
        partial(_prepare_reference, of_photo=False),
    ),
    *(
        (
            f"image-layer-{'training' if training else 'forward'}",
            f"{_IMAGE_LAYER}, 481 x 321 image, lattice reused, forward{' and backward' if training else ''}",
            "cpu",
            "layers",
            partial(_prepare_image_layer, training=training),
        )
        for training in (False, True)
    ),
    *(
        (
            f"image-layers-{kind}-{name}",
            f"{_IMAGE_LAYER}, 8 images of 481 x 321, {name}, {text}",
            "cuda",
            "layers",
            partial(
                _prepare_image_layer,
                training=kind == "training",
                batch=8,
                precision_name=name,
                reused=kind != "built",
            ),
        )
        for kind, name, text in (
            ("training", "fp32", "lattice reused, forward and backward"),
            ("forward", "bf16", "lattice reused, forward"),
            ("training", "bf16", "lattice reused, forward and backward"),
            ("built", "bf16", "lattice built in each call, forward"),
        )
    ),
    (
        "convolution-32-tf32",
        "convolution of 250,000 lattice points, 32 channels, 15 taps, TF32, forward; per lattice point and tap",
        "cuda",
        "layers",
        partial(_prepare_convolution, channels=32, precision_name="tf32"),
    ),
    *(
        (f"step-{name}", f"training step, {text}", device, "training", partial(_prepare_step, **options))
        for name, text, device, options in (
            (
                "layer-built",
                "one layer, 16 to 32 channels, about 40,000 points, lattice built",
                "any",
                {"kind": KINDS["layer"]},
            ),
            ("layer-reused", "the same, lattice reused", "any", {"kind": KINDS["layer"], "reused": True}),
            (
                "three-layers",
                "three layers of 32 channels on one lattice, 8 clouds of about 2,300 points",
                "any",
                {"kind": KINDS["three-layers"]},
            ),
            ("unet", "U-Net of four levels, 8 clouds of about 20,000 points", "any", {"kind": KINDS["unet"]}),
            ("unet-autocast", "the same, autocast bfloat16", "cuda", {"kind": KINDS["unet"], "autocast": True}),
        )
    ),
    *(
        (
            f"captured-step-{name}{'-autocast' if autocast else ''}",
            f"training step as a CUDA graph, {text} that change{', autocast bfloat16' if autocast else ''}",
            "cuda",
            "training",
            partial(prepare_captured, kind=KINDS[name], autocast=autocast),
        )
        for name, text, autocast in (
            ("layer", "one layer, 16 to 32 channels, 40,000 points", False),
            ("layer", "one layer, 16 to 32 channels, 40,000 points", True),
            ("three-layers", "three layers on one lattice, 8 clouds of 2,300 points", False),
            ("unet", "U-Net of four levels, 8 clouds of 20,000 points", False),
            ("unet", "U-Net of four levels, 8 clouds of 20,000 points", True),
        )
    ),
    (
        "unet-inference",
        "the U-Net on about 160,000 points, inference",
        "any",
        "training",
        partial(_prepare_unet, pyramid_only=False),
    ),
    ("unet-pyramid", "the pyramid of its points", "any", "training", partial(_prepare_unet, pyramid_only=True)),
)

WORKLOADS = tuple(
    Workload(name, summary, device, table, prepare, unit="ns" if "per lattice point" in summary else "ms")
    for name, summary, device, table, prepare in _ROWS
)
