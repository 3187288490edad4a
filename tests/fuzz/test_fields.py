"""Random programs for the drop-in of pydensecrf; `tools/fuzz/run_fields.py` runs many more."""

from __future__ import annotations

from fuzz.field_calls import run_program


def test_random_programs() -> None:
    outcomes = {run_program(seed) for seed in range(150)}
    assert {"marginals", "InputError"} <= outcomes
