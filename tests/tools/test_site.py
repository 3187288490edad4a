"""Tutorials run, and the site holds every page."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import matplotlib as mpl
import pytest
import readme
import site_hooks
import tutorials

ROOT = readme.ROOT
DOCS = ROOT / "docs"


@pytest.mark.parametrize("script", tutorials.scripts(), ids=lambda script: script.stem)
def test_tutorials_run(script: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    mpl.use("agg")
    page = tutorials.run(script)
    assert page.markdown.startswith("# ")
    assert "```text" in page.markdown
    for name, png in page.figures.items():
        assert f"]({name})" in page.markdown
        assert png.startswith(b"\x89PNG")
    # a tutorial leaves no files behind
    assert list(tmp_path.iterdir()) == []


def test_a_tutorial_that_fails_names_its_line(tmp_path: Path) -> None:
    script = tmp_path / "wrong.py"
    script.write_text("# %% [markdown]\n# # Title\n\n# %%\nx = 1\nassert x == 2\n")
    with pytest.raises(AssertionError) as caught:
        tutorials.run(script)
    assert caught.traceback[-1].lineno + 1 == 6


def test_the_migrating_page_runs() -> None:
    namespace = readme.run_snippets(DOCS / "migrating.md")
    assert namespace["segmented"].shape == namespace["found"].shape == (40, 50)
    assert namespace["marginals"].shape == (2, 3, 40, 50)
    assert namespace["at_points"].shape == (5000, 16)


@pytest.mark.parametrize(
    "page",
    [page for page in sorted(DOCS.glob("*.md")) if readme.blocks("python", page)],
    ids=lambda page: page.stem,
)
def test_the_snippets_of_pages_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert readme.run_snippets(page)


@pytest.mark.parametrize(
    ("page", "link", "expected"),
    [
        ("index.md", "[a](docs/api/layers.md#layers)", "[a](api/layers.md#layers)"),
        ("index.md", "![a\nb](results/denoising/crops.png)", "![a\nb](results/denoising/crops.png)"),
        ("index.md", "[a](docs/tutorials/first_filter.py)", "[a](tutorials/first_filter.md)"),
        ("tutorials/first_filter.md", "[a](../mnist.md)", "[a](../mnist.md)"),
        ("tutorials/first_filter.md", "[a](scattered_data.py)", "[a](scattered_data.md)"),
        ("denoising.md", "[`a`](../results/denoising/report.md)", "[`a`](results/denoising/report.md)"),
        ("contributing.md", "[a](docs/theory.md)", "[a](theory.md)"),
        ("benchmarks.md", "[a](../CONTRIBUTING.md)", "[a](contributing.md)"),
        ("benchmarks.md", "[a](../src/permutohedral/lattice.py)", "a"),
        ("benchmarks.md", "[a](https://example.org) [b](#gpu)", "[a](https://example.org) [b](#gpu)"),
        ("benchmarks.md", "```\n[a](LICENSE)\n```", "```\n[a](LICENSE)\n```"),
    ],
)
def test_links_of_the_repository_become_links_of_the_site(page: str, link: str, expected: str) -> None:
    assert site_hooks.rewrite_links(link, page) == expected


def test_every_page_is_in_the_navigation() -> None:
    named = set(re.findall(r": ([a-z_/]+\.md)$", (ROOT / "mkdocs.yml").read_text(), flags=re.MULTILINE))
    pages = {path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")}
    pages |= {f"tutorials/{script.stem}.md" for script in tutorials.scripts()}
    assert named == pages | set(site_hooks.PAGES.values())


def test_every_public_name_is_in_the_reference() -> None:
    import permutohedral as ph

    text = "".join(path.read_text() for path in (DOCS / "api").glob("*.md"))
    named = set(re.findall(r"^::: permutohedral\.(.+)$", text, flags=re.MULTILINE))
    public = {name for name in ph.__all__ if name not in ("crf", "nn", "__version__")}
    modules = ph.crf, ph.nn, importlib.import_module("permutohedral.dask")
    inner = {f"{module.__name__.rpartition('.')[2]}.{name}" for module in modules for name in module.__all__}
    assert named == public | inner
