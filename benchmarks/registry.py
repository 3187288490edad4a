"""Types of a benchmark: contenders, workloads, and their selection by name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
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
        error: of the result of repetition 0: relative L2, against the exact Gaussian or the same operation in float64.
        note: differences from the other contenders, in words.
        version: of the library.
        is_peer: whether it is another library that does the same; False for our own code and for what does less.
    """

    name: str
    run: Callable[[int], Any]
    before: Callable[[int], Any] | None = None
    baseline: Callable[[int], Any] | None = None
    error: Callable[[Any], float] | None = None
    note: str = ""
    version: str | None = None
    is_peer: bool = True


def yardstick(name: str, run: Callable[[int], Any], note: str = "") -> Contender:
    """Return a contender that is our own code, or does less."""
    return Contender(name, run, note=note, is_peer=False)


@dataclass(frozen=True)
class Absent:
    """A contender that cannot take part, and the reason."""

    name: str
    reason: str = "not installed: pip install --group bench"


@dataclass(frozen=True)
class Prepared:
    """A workload whose data is in memory, ready to be timed.

    Attributes:
        ours: the contender of this package.
        others: the other contenders, present or absent.
        origin: source of the data.
        per_second: factor from seconds to the unit of the workload.
        num_inputs: number of different inputs that repetitions cycle through.
    """

    ours: Contender
    others: Sequence[Contender | Absent] = ()
    origin: str = "seeded random numbers"
    per_second: float = 1e3
    num_inputs: int = 1


@dataclass(frozen=True)
class Measured:
    """A quantity other than the time of a call: measurements by name, in the unit of the workload."""

    samples: dict[str, list[float]]
    absent: Sequence[Absent] = ()


@dataclass(frozen=True)
class Workload:
    """One published row.

    Attributes:
        name: as `--only` takes it.
        summary: operation and data.
        device: "cpu", "cuda" or "any".
        table: of docs/research/benchmarks.md that shows the row.
        prepare: makes the data and the contenders; None if `measure` finds the quantity.
        measure: measures a quantity, given inputs, threads, repetitions, and whether peers are wanted.
        unit: of the figures.
        optional: left out unless `--only` names it.
    """

    name: str
    summary: str
    device: str
    table: str
    prepare: Callable[[Inputs], Prepared] | None = None
    measure: Callable[[Inputs, int, int, bool], Measured] | None = None
    unit: str = "ms"
    optional: bool = False


def select(workloads: Sequence[Workload], names: Sequence[str] | None, device: str) -> list[Workload]:
    """Return the workloads of a device by name, in the order of the registry; None selects the default ones.

    A name that no workload has selects those that continue it after a hyphen: `step` selects `step-layer`.

    Raises:
        InputError: no workload of `device` has such a name.
    """
    candidates = [workload for workload in workloads if workload.device in (device, "any")]
    if names is None:
        return [workload for workload in candidates if not workload.optional]
    chosen: set[str] = set()
    for name in names:
        wanted = name.strip().lower()
        found = {each.name for each in candidates if each.name == wanted}
        found = found or {each.name for each in candidates if each.name.startswith(f"{wanted}-")}
        if not found:
            known = ", ".join(workload.name for workload in candidates)
            raise InputError(f"only: there is no workload {name!r} for device {device!r}; choose among {known}")
        chosen |= found
    return [workload for workload in candidates if workload.name in chosen]
