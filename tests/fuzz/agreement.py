"""Run a call on every backend and compare the results or errors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from fuzz.cases import Case
from hypothesis import settings
from support import TOLERANCE, relative_error, usable_backends
from torch import Tensor

from permutohedral.errors import PermutohedralError
from permutohedral.ops import dispatch

Call = Callable[[], list[Tensor]]
Outcome = list[Tensor] | PermutohedralError

# these calls are small: more of them than other tests make
often = settings(max_examples=3 * settings().max_examples)

OTHERS = [name for name in usable_backends() if name != "reference"]


def outcome_of(call: Call, backend: str, threads: int = 1) -> Outcome:
    """Return the result of a call, or the error of the package that it raises."""
    with dispatch.use(backend), forced_threads(backend, threads):
        try:
            return call()
        except PermutohedralError as error:
            raised = error
    assert len(str(raised)) > 20, "an error must say what to do"
    return raised


@contextmanager
def forced_threads(backend: str, threads: int) -> Iterator[None]:
    """Run the native core on several threads and in every instruction set, for inputs of any size."""
    if backend != "native":
        yield
        return
    from permutohedral import _native
    from permutohedral.ops.native import bridge

    before, chosen = bridge.threads, _native.instruction_set()
    available = _native.instruction_sets()
    bridge.threads = lambda work: threads
    _native.use_instruction_set(available[threads % len(available)])
    try:
        yield
    finally:
        bridge.threads = before
        _native.use_instruction_set(chosen)


def assert_agreement(call: Call, case: Case, tolerance: float) -> None:
    """Compare every backend with the reference, relative to the largest value; both may raise."""
    expected = outcome_of(call, "reference")
    for backend in OTHERS:
        actual = outcome_of(call, backend, case.threads)
        if isinstance(expected, PermutohedralError) or isinstance(actual, PermutohedralError):
            assert type(actual) is type(expected) or near_the_limit(case), f"{backend}: {actual!r}, not {expected!r}"
            continue
        for number, (left, right) in enumerate(zip(actual, expected, strict=True)):
            error = relative_error(left, right)
            assert error <= tolerance, (
                f"{backend}: result {number} differs by {error:.3g} of its largest, {tolerance:.3g}"
            )


def near_the_limit(case: Case) -> bool:
    """Whether features lie so close to the largest allowed that rounding decides on which side."""
    from permutohedral.ops.contract import key_limit

    limit = key_limit(case.dtypes[0])
    return 0.2 * limit < case.magnitude < 5 * limit


def tolerance_of(case: Case) -> float:
    """Return the tolerance of the dtype; features far from the origin have fewer digits."""
    features, values = case.dtypes
    return TOLERANCE[values] + TOLERANCE[features] * (case.magnitude if not case.generic else 1.0)
