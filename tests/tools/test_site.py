"""Snippets of pages and tutorials run, and the site has every page and every public name."""

from __future__ import annotations

import importlib
import operator
import pydoc
import re
import runpy
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import readme

DOCS = readme.ROOT / "docs"
TUTORIALS = sorted((DOCS / "tutorials").glob("*.py"))


@pytest.mark.parametrize(
    "page",
    [page for page in readme.pages() if readme.blocks("python", page)],
    ids=lambda page: page.relative_to(readme.ROOT).as_posix(),
)
def test_snippets_of_pages_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    readme.write_pictures(tmp_path)
    assert readme.run_snippets(page)


@pytest.mark.parametrize("script", TUTORIALS, ids=lambda script: script.stem)
def test_tutorials_run(script: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pyplot: Any = pytest.importorskip("matplotlib.pyplot", reason="matplotlib is not installed")
    pyplot.switch_backend("agg")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    # with MNIST, the training takes half a minute
    monkeypatch.delenv("PERMUTOHEDRAL_DATA", raising=False)
    runpy.run_path(str(script))
    pyplot.close("all")


def test_every_page_of_the_guide_starts_with_code() -> None:
    for page in (DOCS / "guide").glob("*.md"):
        first_section = page.read_text().split("\n## ")[0]
        assert page.stem in ("index", "errors") or "```" in first_section, page


def test_gallery_has_every_tutorial() -> None:
    order = re.search(r"^TUTORIALS = \[(.*?)\]", (DOCS / "conf.py").read_text(), re.DOTALL | re.MULTILINE)
    assert order is not None
    assert sorted(re.findall(r'"(\w+)"', order[1])) == sorted(page.stem for page in TUTORIALS)


def test_pages_stay_short() -> None:
    # tables made from results and formulas are no prose
    others = re.compile(r"<!-- table: .+? -->\n.*?<!-- end of table -->|\$\$.+?\$\$", flags=re.DOTALL)
    words = {page: len(others.sub("", page.read_text()).split()) for page in [*DOCS.rglob("*.md"), *TUTORIALS]}
    guide = sum(count for page, count in words.items() if page.parent.name in ("guide", "tutorials"))
    assert guide <= 15_000
    assert sum(words.values()) <= 26_000


def test_every_public_name_is_in_the_reference() -> None:
    import permutohedral as ph

    text = "".join(path.read_text() for path in (DOCS / "api").glob("*.md"))
    names = re.findall(r"^\.\. auto(?:function|class|exception):: permutohedral\.(.+)$", text, flags=re.MULTILINE)
    assert len(names) == len(set(names))
    documented = {id(pydoc.locate(f"permutohedral.{name}") or operator.attrgetter(name)(ph)) for name in names}
    modules = {name: getattr(ph, name) for name in ph.__all__ if isinstance(getattr(ph, name), ModuleType)}
    modules["dask"] = importlib.import_module("permutohedral.dask")
    public = {name: getattr(ph, name) for name in ph.__all__ if name not in (*modules, "__version__")}
    for module_name, module in modules.items():
        # drop-ins are imported from their modules
        if module_name != "compat":
            public |= {f"{module_name}.{name}": getattr(module, name) for name in module.__all__}
        assert (DOCS / "api" / f"{module_name}.md").is_file(), module_name
    assert [name for name, value in public.items() if id(value) not in documented] == []
    assert {name for name in names if name.split(".")[0] != "compat"} <= set(public)
