"""What a workload is, and how one is found by name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from permutohedral.benchmarks.inputs import Inputs
from permutohedral.benchmarks.timing import Absent, Contender
from permutohedral.errors import InputError

OURS = "permutohedral"


@dataclass(frozen=True)
class Prepared:
    """A workload whose data is in memory, ready to be checked and timed.

    Attributes:
        ours: this package's contender.
        peers: the others, present or absent.
        check: raises `OperatorDisagrees` if our result is wrong, else returns the errors found.
        origin: where the data comes from.
        facts: sizes, by name.
        truth: what errors are measured against.
        per_second: figures are seconds times this, where it depends on the data; else the workload's own.
    """

    ours: Contender
    peers: Sequence[Contender | Absent]
    check: Callable[[], dict[str, float]]
    origin: str
    facts: dict[str, float] = field(default_factory=dict)
    truth: str = "the exact Gaussian in float64, at randomly drawn points"
    per_second: float | None = None


@dataclass(frozen=True)
class Measured:
    """A quantity that is no time of a call: each name's measurements in the workload's unit."""

    samples: dict[str, list[float]]
    absent: Sequence[Absent] = ()
    facts: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Recorded:
    """What a peer that cannot be installed with pip reached on another machine, where it was built by hand.

    Attributes:
        peer: its name.
        value: by number of threads, in the workload's unit; 0 stands for any number.
    """

    peer: str
    value: dict[int, float]

    def at(self, threads: int) -> float | None:
        """The figure for this many threads."""
        return self.value.get(threads, self.value.get(0))


@dataclass(frozen=True)
class Workload:
    """One line of the report.

    Attributes:
        name: what `--only` takes.
        summary: what is run on what.
        device: "cpu" or "cuda".
        prepare: makes the data and the contenders; None for a quantity that `measure` finds.
        measure: finds a quantity with this many threads and repetitions, of the peers too if the last argument says so.
        unit: of the figures reported.
        per_second: figures are seconds times this.
        recorded: figures of peers on another machine, as recorded.
    """

    name: str
    summary: str
    device: str
    prepare: Callable[[Inputs], Prepared] | None = None
    measure: Callable[[Inputs, int, int, bool], Measured] | None = None
    unit: str = "ms"
    per_second: float = 1e3
    recorded: tuple[Recorded, ...] = ()


def select(workloads: Sequence[Workload], names: Sequence[str] | None, device: str) -> list[Workload]:
    """The workloads of `device` that `names` name, in the order of the registry; all of them for None.

    A name that no workload has selects those that continue it after a hyphen: W5 stands for W5-W1, W5-W1b, W5-W4.

    Raises:
        InputError: no workload of `device` has such a name.
    """
    candidates = [workload for workload in workloads if workload.device == device]
    if names is None:
        return candidates
    chosen: set[str] = set()
    for name in names:
        wanted = name.strip().lower()
        exact = {workload.name for workload in candidates if workload.name.lower() == wanted}
        found = exact or {workload.name for workload in candidates if workload.name.lower().startswith(f"{wanted}-")}
        if not found:
            known = ", ".join(workload.name for workload in candidates)
            raise InputError(f"there is no workload {name!r} for device {device!r}; choose among {known}")
        chosen |= found
    return [workload for workload in candidates if workload.name in chosen]
