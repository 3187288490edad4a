"""Counts of calls, and comparisons of results."""

from __future__ import annotations

import torch

from benchmarks import bits, calls


def test_counts_python_calls() -> None:
    def inner() -> None:
        pass

    def outer() -> None:
        inner()
        inner()

    assert [name.rpartition(".")[2] for _, name in calls.trace_calls(outer)] == ["outer", "inner", "inner"]


def test_every_operation_is_counted() -> None:
    for name, run in calls.operations().items():
        found, files = calls.count_calls(name, run)
        assert len(found) > files > 1


def test_differences_of_bits() -> None:
    one = torch.tensor([1.0, torch.nan])
    assert bits.difference(one, one.clone()) is None
    assert bits.difference(torch.zeros(1), -torch.zeros(1)) is not None
    assert bits.difference(one, one.double()) == float("inf")
