"""The tests in this folder run the Triton kernels in Triton's interpreter, without a GPU.

The interpreter is chosen when the kernels are imported, for a whole process, so this is a session of its own:
`TRITON_INTERPRET=1 pytest tests/interpreted`. Any other session skips the folder.
"""

from __future__ import annotations

import importlib.util
import os
from importlib.metadata import version
from pathlib import Path

import pytest
from support import INTERPRETED

FOLDER = Path(__file__).parent
RECORDING = INTERPRETED and "RECORDED_LAUNCHES" in os.environ


def reason_to_skip() -> str | None:
    """Why the kernels cannot be interpreted in this process."""
    if importlib.util.find_spec("triton") is None:
        return "Triton is not installed"
    if not INTERPRETED:
        return "a session of its own: TRITON_INTERPRET=1 pytest tests/interpreted"
    from interpreted.loop import run_loop

    try:
        run_loop()
    except Exception as error:
        return f"Triton {version('triton')} with NumPy {version('numpy')} cannot interpret a loop: {error}"
    return None


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Without Triton the modules cannot even be imported."""
    return True if importlib.util.find_spec("triton") is None and collection_path.suffix == ".py" else None


def pytest_sessionfinish() -> None:
    if RECORDING:
        from interpreted import recorder

        recorder.write()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if RECORDING:
        from interpreted import recorder

        recorder.start()
    ours = [item for item in items if FOLDER in item.path.parents]
    reason = reason_to_skip() if ours else None
    if reason is not None:
        for item in ours:
            item.add_marker(pytest.mark.skip(reason=reason))
    elif ours:
        from interpreted import language

        language.keep_replaced()
