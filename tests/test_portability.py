"""Systems without Linux's files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from permutohedral.lattice import memory


def test_free_memory_without_proc(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a Mac: the file is hidden and the pages are injected, since no such system is here."""
    if not hasattr(os, "sysconf"):
        pytest.skip("Windows is asked through ctypes")
    page = os.sysconf("SC_PAGE_SIZE")

    def missing(path: Path) -> str:
        raise FileNotFoundError(path)

    monkeypatch.setattr(Path, "read_text", missing)
    assert memory._free_memory() == os.sysconf("SC_PHYS_PAGES") * page
    counts = {b"vm.page_free_count": 70, b"vm.page_pageable_external_count": 30}
    monkeypatch.setattr(memory, "_read_pages", counts.__getitem__)
    assert memory._free_memory() == 100 * page
