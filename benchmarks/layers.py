"""Workloads of learned filters: layers, convolutions on lattice points, training steps, U-Nets."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

import permutohedral as ph
from benchmarks.filters import problems_of
from benchmarks.inputs import FilterProblem, Inputs, color_photo, large_photo, sphere_points
from benchmarks.registry import OURS, Absent, Contender, Prepared, Workload
from experiments.quality import relative_error

PLAIN_TORCH = "plain torch"
CHANNELS, HEIGHT, WIDTH = 32, 321, 481

# dtype of the values, and whether products of float32 may be rounded to TF32
PRECISIONS = {
    "fp32": (torch.float32, False),
    "TF32": (torch.float32, True),
    "bf16": (torch.bfloat16, False),
    "autocast": (torch.float32, False),
}


@contextmanager
def precision(name: str) -> Iterator[torch.dtype]:
    """Set torch's switches for a precision of `PRECISIONS`, and yield its dtype."""
    dtype, rounded = PRECISIONS[name]
    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = rounded
    try:
        with torch.autocast("cuda", torch.bfloat16) if name == "autocast" else nullcontext():
            yield dtype
    finally:
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = before


def _in_float64(lattice: ph.Lattice) -> ph.Lattice:
    """Return the same lattice with weights in float64, so that points near a face stay on their side of it."""
    source = replace(lattice.source, barycentric=lattice.source.barycentric.double())
    return replace(lattice, source=source, target=source)


def _prepare_learned(inputs: Inputs, backward: bool) -> Prepared:
    """Filter 32 to 32 channels with 15 taps on the lattice of W4, forward or backward."""
    problem = problems_of("W4", inputs)[0]
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

    def contender(name: str, backend: str | None, note: str = "") -> Contender:
        def run(number: int) -> Any:
            with ph.backends.use(backend):
                if backward:
                    return torch.autograd.grad(kept["output"], leaves, gradient)
                return forward()

        def before(number: int) -> None:
            with ph.backends.use(backend):
                kept["output"] = forward()

        return Contender(name, run, before if backward else None, error=None if backward else error, note=note)

    plain = contender(PLAIN_TORCH, "reference", "the reference backend of this package: gather and matrix product")
    return Prepared(contender(OURS, None), [plain], problem.origin)


def _prepare_reference(inputs: Inputs, sigma_space: float | None, training: bool = False) -> Prepared:
    """Filter a photo of 512 x 512 pixels, or run a layer on 20,000 points, on the chosen and the reference backend."""
    if sigma_space is not None:
        problems = large_photo(inputs, (sigma_space, 0.1), side=512).variants()
    else:
        problems = FilterProblem(sphere_points(20_000, 10.8), torch.randn(20_000, CHANNELS), "").variants()
    layer = ph.nn.PermutohedralConv(CHANNELS, CHANNELS, 3)

    def call(number: int) -> Any:
        given = problems[number % len(problems)]
        if given.image is not None:
            return ph.bilateral_filter(given.image, sigma_space=given.sigmas[0], sigma_color=given.sigmas[1])
        output = layer(given.values.requires_grad_(training), given.features)
        return torch.autograd.grad(output.sum(), [given.values, *layer.parameters()]) if training else output

    def contender(name: str, backend: str | None) -> Contender:
        def run(number: int) -> Any:
            with ph.backends.use(backend):
                return call(number)

        return Contender(name, run)

    plain = contender(PLAIN_TORCH, "reference")
    return Prepared(contender(OURS, None), [plain], problems[0].origin, num_inputs=len(problems))


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


def _mnist_points(inputs: Inputs) -> tuple[list[Tensor], Tensor]:
    """Return 784 random positions for each of 64 images, three times, and a grid of 576 targets."""
    generator = torch.Generator().manual_seed(0)
    sources = [(28 * torch.rand(64, 784, 2, generator=generator)).to(inputs.device) for _ in range(3)]
    targets = (ph.features.positions((24, 24), device=inputs.device) + 2).expand(64, -1, -1).contiguous()
    return sources, targets


def _prepare_mnist_build(inputs: Inputs) -> Prepared:
    """Build the lattices of a batch of MNIST images, d = 2, s = 2."""
    sources, targets = _mnist_points(inputs)

    def run(number: int) -> Any:
        return ph.build_lattice(sources[number % 3], targets, neighborhood_size=2)

    return Prepared(Contender(OURS, run), origin="seeded positions", num_inputs=3)


def _prepare_mnist_step(inputs: Inputs, own_thread: bool = True) -> Prepared:
    """Run forward and backward through a layer of 1 to 20 channels on a batch of MNIST, lattice included.

    torch runs the backward pass of a GPU in a thread of its own; without `own_thread`, in the calling thread.
    """
    sources, targets = _mnist_points(inputs)
    values = torch.rand(64, 784, 1, generator=torch.Generator().manual_seed(1)).to(inputs.device)
    layer = ph.nn.PermutohedralConv(1, 20, 2, 2, device=inputs.device)
    gradient = torch.ones_like(layer(values, sources[0], targets))

    def run(number: int) -> Any:
        with torch.autograd.set_multithreading_enabled(own_thread):
            output = layer(values, sources[number % 3], targets)
            return torch.autograd.grad(output, list(layer.parameters()), gradient)

    def error(gradients: Any) -> float:
        exact = copy.deepcopy(layer).double()
        output = exact(values.double(), sources[0].double(), targets.double())
        truth = torch.autograd.grad(output, list(exact.parameters()), gradient.double())
        return max(map(relative_error, gradients, truth))

    return Prepared(Contender(OURS, run, error=error), origin="seeded positions", num_inputs=3)


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


def _prepare_convolution(inputs: Inputs, channels: int, precision_name: str, training: bool) -> Prepared:
    """Convolve on the lattice of a sphere, 15 taps, in nanoseconds per lattice point and tap."""
    problem = problems_of("G3-d3", inputs)[0]
    lattice = ph.build_lattice(problem.features, neighborhood_size=1)
    rows, filter_size = lattice.num_lattice_points, lattice.neighborhood.filter_size
    generator = torch.Generator().manual_seed(0)
    shapes = ((rows, channels), (filter_size, channels, channels), (rows, channels))
    with precision(precision_name) as dtype:
        values, weight, gradient = (torch.randn(s, generator=generator).to(inputs.device, dtype) for s in shapes)
    weight /= (filter_size * channels) ** 0.5
    leaves = (values.requires_grad_(training), weight.requires_grad_(training))

    def run() -> Any:
        with precision(precision_name):
            output = ph.convolve(*leaves, lattice)
            return torch.autograd.grad(output, leaves, gradient) if training else output

    def error(output: Any) -> float:
        on = _in_float64(lattice)
        exact = [leaf.detach().double().requires_grad_(training) for leaf in leaves]
        with ph.backends.use("reference"):
            truth: Any = ph.convolve(exact[0], exact[1], on)
            if not training:
                return relative_error(output, truth)
            truth = torch.autograd.grad(truth, exact, gradient.double())
        return max(map(relative_error, output, truth))

    ours = Contender(OURS, _graphed(run), error=error, note="through autograd, replayed from a CUDA graph")
    return Prepared(ours, (), problem.origin, per_second=1e9 / (rows * filter_size * _RUNS_IN_A_GRAPH))


def _draw_hills(draw: torch.Generator, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """Return values, features and items of 8 clouds of about 20,000 points: hills with trees, as in laser scans."""
    counts = torch.randint(19_000, 21_001, (8,), generator=draw)
    items = torch.repeat_interleave(torch.arange(8), counts).int()
    values = torch.randn(len(items), 4)
    ground = 57 * torch.rand(len(items), 2)
    height = 3 * (ground / 9).sin().sum(dim=1) + 0.1 * torch.randn(len(items))
    tree = 12 * torch.rand(len(items)) * (torch.rand(len(items)) < 0.3)
    return values.to(device), torch.column_stack([ground, height + tree]).to(device), items.to(device)


def make_unet(in_channels: int) -> nn.Module:
    """Return the U-Net of the workloads for 3 classes, on features: four levels of 16 to 64 channels."""
    return ph.nn.LatticeUNet(in_channels, 3, step=1.0, widths=(16, 32, 48, 64))


def _prepare_unet(inputs: Inputs, pyramid_only: bool) -> Prepared:
    """Run a U-Net of four levels without gradients, or build the pyramid of its points."""
    draw = torch.Generator().manual_seed(0)
    torch.manual_seed(0)
    network = make_unet(4).to(inputs.device).eval()
    clouds = [_draw_hills(draw, inputs.device) for _ in range(40 if inputs.device.type == "cuda" else 3)]

    def run(number: int) -> Any:
        values, features, items = clouds[number % len(clouds)]
        if pyramid_only:
            return ph.levels.build_pyramid(features, 4, batch=items)
        with torch.no_grad():
            return network(values, features, items)

    return Prepared(Contender(OURS, run), origin="seeded clouds", num_inputs=len(clouds))


def _prepare_bilateral_conv(inputs: Inputs, guide_channels: int | None, training: bool) -> Prepared:
    """Run `BilateralConv2d` on photos as their own guide, or on hidden channels with a color guide."""
    torch.manual_seed(0)
    batch = 8 if inputs.device.type == "cuda" else 1
    photo = color_photo(inputs)
    guides = [each.repeat(batch, 1, 1, 1).to(inputs.device) for each in (photo, photo.flip(1), photo.flip(2))]
    hidden = [torch.randn(batch, CHANNELS, HEIGHT, WIDTH).to(inputs.device) for _ in guides]
    images = guides if guide_channels is None else [each.requires_grad_(training) for each in hidden]
    layer = ph.nn.BilateralConv2d(
        images[0].shape[1], CHANNELS, guide_channels=guide_channels, sigma_space=4.0, device=inputs.device
    )
    gradient = torch.ones(batch, CHANNELS, HEIGHT, WIDTH, device=inputs.device)

    def run(number: int) -> Any:
        image, guide = images[number % 3], guides[number % 3] if guide_channels else None
        with torch.set_grad_enabled(training):
            output = layer(image, guide)
        if not training:
            return output
        leaves = [*layer.parameters(), *([image] if image.requires_grad else [])]
        return torch.autograd.grad(output, leaves, gradient)

    return Prepared(Contender(OURS, run), origin=inputs.photo[1], num_inputs=3)


def _train(module: nn.Module, optimizer: torch.optim.Optimizer, run: Callable[[], Tensor]) -> None:
    optimizer.zero_grad(set_to_none=True)
    run().square().mean().backward()
    optimizer.step()


def _prepare_steps(inputs: Inputs, kind: str, autocast: bool = False) -> Prepared:
    """Train on clouds that change: one layer, three layers on one lattice, or a U-Net of four levels."""
    draw = torch.Generator().manual_seed(0)
    torch.manual_seed(0)
    device = inputs.device
    module: nn.Module
    if kind == "layer":
        module = ph.nn.PermutohedralConv(16, 32, dimension=3, device=device)
    elif kind == "three-layers":
        module = nn.ModuleList(ph.nn.PermutohedralConv(32, 32, 3, device=device) for _ in range(3))
    else:
        module = make_unet(4).to(device)
    optimizer = torch.optim.SGD(module.parameters(), lr=1e-3)

    def cloud() -> Callable[[], Tensor]:
        if kind == "layer":
            points = int(torch.randint(20_000, 60_001, (1,), generator=draw))
            features, values = 20 * torch.rand(points, 3), torch.randn(points, 16)
            features, values = features.to(device), values.to(device)
            return lambda: module(values, features)
        if kind == "unet":
            return partial(module, *_draw_hills(draw, device))
        counts = torch.randint(2_000, 2_601, (8,), generator=draw)
        items = torch.repeat_interleave(torch.arange(8), counts).int().to(device)
        values = torch.randn(len(items), 32).to(device)
        features = (8 * torch.rand(len(items), 3)).to(device)

        def run_layers() -> Tensor:
            lattice = ph.build_lattice(features, batch=items)
            result = values
            for layer in module.children():
                result = torch.relu(layer(result, lattice))
            return result

        return run_layers

    clouds = [cloud() for _ in range(40 if device.type == "cuda" else 3)]

    def run(number: int) -> None:
        with torch.autocast(device.type, torch.bfloat16, enabled=autocast):
            _train(module, optimizer, clouds[number % len(clouds)])

    return Prepared(Contender(OURS, run), origin="seeded clouds", num_inputs=len(clouds))


# items, points, input channels, extent of the points; levels of the pyramid, if any
CAPTURED = {
    "layer": (1, 40_000, 16, 20.0, None),
    "three-layers": (8, 2_300, 32, 8.0, None),
    "unet": (8, 20_000, 4, 57.0, 4),
}


def prepare_captured(inputs: Inputs, kind: str, autocast: bool = False, points: int | None = None) -> Prepared:
    """Train on clouds of one size that change, by `capture_step`, next to the same step without capture."""
    items, default, channels, extent, num_levels = CAPTURED[kind]
    points, device = points or default, inputs.device
    torch.manual_seed(0)
    module: nn.Module = nn.ModuleList(
        ph.nn.PermutohedralConv(channels, 32, 3, device=device) for _ in range(3 if kind == "three-layers" else 1)
    )
    if num_levels is not None:
        module = make_unet(channels).to(device)
    optimizer = torch.optim.SGD(module.parameters(), lr=1e-3)

    def forward(lattice: Any, values: Tensor) -> Tensor:
        if num_levels is not None:
            result: Tensor = module(values, pyramid=lattice)
            return result
        for layer in module.children():
            values = torch.relu(layer(values, lattice))
        return values

    def train(lattice: Any, values: Tensor) -> None:
        with torch.autocast(device.type, torch.bfloat16, enabled=autocast):
            _train(module, optimizer, lambda: forward(lattice, values))

    step = ph.nn.capture_step(train, num_levels=num_levels)
    size = extent * torch.tensor([1.0, 1.0, 0.2 if kind == "unet" else 1.0])
    clouds = [
        ((size * torch.rand(items, points, 3)).to(device), torch.randn(items, points, channels).to(device))
        for _ in range(40 if device.type == "cuda" else 3)
    ]
    # the host of the first steps is not what is measured
    for cloud in clouds[:4]:
        step(*cloud)

    def run_eager(number: int) -> None:
        features, values = clouds[number % len(clouds)]
        build = ph.build_lattice if num_levels is None else partial(ph.levels.build_pyramid, num_levels=num_levels)
        train(build(features), values)

    ours = Contender(OURS, lambda number: step(*clouds[number % len(clouds)]))
    return Prepared(ours, [Contender("without capture", run_eager)], "seeded clouds", num_inputs=len(clouds))


# name, device, function, summary
_ROWS: tuple[tuple[str, str, Callable[[Inputs], Prepared], str], ...] = (
    (
        "W7-forward",
        "cpu",
        partial(_prepare_learned, backward=False),
        "learned 32 to 32 channels, 15 taps, on the lattice of W4, forward",
    ),
    (
        "W7-backward",
        "cpu",
        partial(_prepare_learned, backward=True),
        "the same, backward: gradients of values and filter",
    ),
    (
        "layer-forward",
        "cpu",
        partial(_prepare_image_layer, training=False),
        "layer 32 to 32 channels, 19 taps, 481 x 321 image, lattice reused, forward",
    ),
    ("layer-training", "cpu", partial(_prepare_image_layer, training=True), "the same, forward and backward"),
    ("mnist-build", "any", _prepare_mnist_build, "the lattices of a batch of 64 MNIST images, d = 2, s = 2"),
    (
        "mnist-step",
        "any",
        _prepare_mnist_step,
        "forward and backward through a layer on 64 MNIST images, lattice included",
    ),
    (
        "mnist-step-one-thread",
        "cuda",
        partial(_prepare_mnist_step, own_thread=False),
        "the same, the backward pass in the calling thread (torch.autograd.set_multithreading_enabled(False))",
    ),
)

WORKLOADS = (
    *(Workload(name, summary, device, prepare) for name, device, prepare, summary in _ROWS),
    *(
        Workload(f"reference-{name}", f"{summary}, next to the reference backend", "cpu", prepare)
        for name, summary, prepare in (
            ("8", "bilateral filter, 512 x 512 photo, 8 pixels / 0.1", partial(_prepare_reference, sigma_space=8.0)),
            ("16", "the same with 16 pixels / 0.1", partial(_prepare_reference, sigma_space=16.0)),
            ("forward", "layer 32 to 32 channels, 20,000 points", partial(_prepare_reference, sigma_space=None)),
            ("step", "the same, with gradients", partial(_prepare_reference, sigma_space=None, training=True)),
        )
    ),
    *(
        Workload(
            f"C-{kind}-{name}",
            f"layer 32 to 32 channels, 19 taps, 8 images of 481 x 321, {name}, {text}",
            "cuda",
            partial(
                _prepare_image_layer,
                training=kind == "training",
                batch=8,
                precision_name=name,
                reused=kind != "built",
            ),
        )
        for name in PRECISIONS
        for kind, text in (
            ("forward", "lattice reused, forward"),
            ("training", "lattice reused, forward and backward"),
            ("built", "lattice built in each call, forward"),
        )
    ),
    *(
        Workload(
            f"{row}-{channels}-{name}",
            f"convolution of 250,000 lattice points, {channels} channels, 15 taps, {name}, {passes}",
            "cuda",
            partial(_prepare_convolution, channels=channels, precision_name=name, training=row == "G2b"),
            unit="ns",
        )
        for row, passes in (("G2", "forward"), ("G2b", "forward and backward"))
        for channels in (32, 64)
        for name in ("bf16", "TF32", "fp32")
    ),
    *(
        Workload(
            f"captured-{kind}{'-autocast' if autocast else ''}",
            f"training step as a CUDA graph, {text}{', autocast bfloat16' if autocast else ''}",
            "cuda",
            partial(prepare_captured, kind=kind, autocast=autocast),
        )
        for kind, text in (
            ("layer", "one layer, 16 to 32 channels, 40,000 points that change"),
            ("three-layers", "three layers on one lattice, 8 clouds of 2,300 points that change"),
            ("unet", "U-Net of four levels, 8 clouds of 20,000 points that change"),
        )
        for autocast in (False, True)
    ),
    *(
        Workload(
            f"step-{kind}{'-autocast' if autocast else ''}",
            f"training step, {text}{', autocast bfloat16' if autocast else ''}",
            "cuda" if autocast else "any",
            partial(_prepare_steps, kind=kind, autocast=autocast),
        )
        for kind, text in (
            ("layer", "one layer, 16 to 32 channels, clouds of 20,000 to 60,000 points"),
            ("three-layers", "three layers on one lattice, 8 clouds of about 2,300 points"),
            ("unet", "U-Net of four levels, 8 clouds of about 20,000 points"),
        )
        for autocast in (False, True)
    ),
    Workload("unet-inference", "the same U-Net, inference", "any", partial(_prepare_unet, pyramid_only=False)),
    Workload("unet-pyramid", "the pyramid of its points", "any", partial(_prepare_unet, pyramid_only=True)),
    *(
        Workload(
            f"bilateral-conv-{name}-{'training' if training else 'forward'}",
            f"BilateralConv2d, 481 x 321 photo, {text}, {'forward and backward' if training else 'forward'}",
            "any",
            partial(_prepare_bilateral_conv, guide_channels=guide_channels, training=training),
        )
        for name, guide_channels, text in (
            ("own", None, "3 to 32 channels, its own guide"),
            ("color", 3, "32 to 32 channels, color guide"),
        )
        for training in (False, True)
    ),
)
