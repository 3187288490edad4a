"""Types of a benchmark: contenders, workloads, and their selection by name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.inputs import Inputs
from permutohedral.errors import InputError

OURS = "permutohedral"


@dataclass(frozen=True)
class Contender:
    """One way to compute the operation of a workload.

    Attributes:
        name: library or variant.
        run: the timed function of the number of the repetition, which selects its input.
        before: run before each repetition, untimed, with the same number.
        baseline: extra work of `run` that the interface of a peer makes unavoidable; its median is subtracted.
        error: relative L2 error of the result of repetition 0 against the truth that the workload names.
        note: differences from the other contenders, in words.
        version: of the library.
        same_task: False for a yardstick that does less, such as interpolation without the guide.
    """

    name: str
    run: Callable[[int], Any]
    before: Callable[[int], Any] | None = None
    baseline: Callable[[int], Any] | None = None
    error: Callable[[Any], float] | None = None
    note: str = ""
    version: str | None = None
    same_task: bool = True


@dataclass(frozen=True)
class Absent:
    """A contender that cannot take part, and the reason."""

    name: str
    reason: str


@dataclass(frozen=True)
class Prepared:
    """A workload whose data is in memory, ready to be checked and timed.

    Attributes:
        ours: the contender of this package.
        peers: the others, present or absent.
        check: raises `OperatorDisagrees` if our result is wrong, else returns the errors found.
        origin: source of the data.
        facts: sizes, by name.
        truth: reference of the errors.
        per_second: factor from seconds to the unit of the workload, if it depends on the data.
        warm_up: loads libraries on a small input, before peak memory is measured.
        num_inputs: number of different inputs that repetitions cycle through.
    """

    ours: Contender
    peers: Sequence[Contender | Absent] = ()
    check: Callable[[], dict[str, float]] = dict
    origin: str = "seeded random numbers"
    facts: dict[str, float] = field(default_factory=dict)
    truth: str = "the exact Gaussian in float64, at randomly drawn points"
    per_second: float | None = None
    warm_up: Callable[[], Any] | None = None
    num_inputs: int = 1


@dataclass(frozen=True)
class Measured:
    """A quantity other than the time of a call: measurements by name, in the unit of the workload."""

    samples: dict[str, list[float]]
    absent: Sequence[Absent] = ()
    facts: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Recorded:
    """A figure of a peer that pip cannot install, measured once on another machine.

    Attributes:
        peer: its name.
        value: by number of threads, in the unit of the workload; 0 stands for any number.
    """

    peer: str
    value: dict[int, float]

    def at(self, threads: int) -> float | None:
        """Return the figure for this number of threads."""
        return self.value.get(threads, self.value.get(0))


def recorded(**figures: float | tuple[float, float]) -> tuple[Recorded, ...]:
    """Return recorded figures of peers: one number for any number of threads, or a pair for one and two."""
    return tuple(
        Recorded(peer, {1: figure[0], 2: figure[1]} if isinstance(figure, tuple) else {0: figure})
        for peer, figure in figures.items()
    )


@dataclass(frozen=True)
class Workload:
    """One row of the report.

    Attributes:
        name: as `--only` takes it.
        summary: operation and data.
        device: "cpu", "cuda" or "any".
        prepare: makes the data and the contenders; None if `measure` finds the quantity.
        measure: measures a quantity, given inputs, threads, repetitions, and whether peers are wanted.
        unit: of the figures.
        per_second: factor from seconds to that unit.
        recorded: figures of peers on another machine.
        optional: left out unless `--only` names it.
    """

    name: str
    summary: str
    device: str
    prepare: Callable[[Inputs], Prepared] | None = None
    measure: Callable[[Inputs, int, int, bool], Measured] | None = None
    unit: str = "ms"
    per_second: float = 1e3
    recorded: tuple[Recorded, ...] = ()
    optional: bool = False


def select(workloads: Sequence[Workload], names: Sequence[str] | None, device: str) -> list[Workload]:
    """Return the workloads of a device by name, in the order of the registry; None selects the default ones.

    A name that no workload has selects those that continue it after a hyphen: W5 selects W5-W1 and W5-W4.

    Raises:
        InputError: no workload of `device` has such a name.
    """
    candidates = [workload for workload in workloads if workload.device in (device, "any")]
    if names is None:
        return [workload for workload in candidates if not workload.optional]
    chosen: set[str] = set()
    for name in names:
        wanted = name.strip().lower()
        exact = {workload.name for workload in candidates if workload.name.lower() == wanted}
        found = exact or {workload.name for workload in candidates if workload.name.lower().startswith(f"{wanted}-")}
        if not found:
            known = ", ".join(workload.name for workload in candidates)
            raise InputError(f"only: there is no workload {name!r} for device {device!r}; choose among {known}")
        chosen |= found
    return [workload for workload in candidates if workload.name in chosen]
