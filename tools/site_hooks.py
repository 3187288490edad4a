"""What mkdocs does beyond its pages: files from outside of docs/, tutorials that run, formulas without scripts.

Links in our Markdown files lead to files of the repository, so that they work wherever the repository is browsed; here
they are turned into links within the site.
"""

from __future__ import annotations

import html
import logging
import posixpath
import re
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import tutorials

ROOT = Path(__file__).resolve().parents[1]
LOG = logging.getLogger("mkdocs.hooks.site")

# pages of the site by their place in the repository, where the two differ
PAGES = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
}
RESULTS = {".png", ".svg", ".json", ".csv", ".md"}

_LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^()\s]+)\)")
_FORMULA = re.compile(r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', flags=re.DOTALL)


def site_path(repository_path: str) -> str | None:
    """Where a file of the repository is in the site, None if it is not part of it.

    >>> site_path("docs/theory.md"), site_path("README.md"), site_path("LICENSE")
    ('theory.md', 'index.md', None)
    >>> site_path("docs/tutorials/first_filter.py")
    'tutorials/first_filter.md'
    """
    if repository_path in PAGES:
        return PAGES[repository_path]
    if repository_path.startswith("docs/"):
        inside = repository_path.removeprefix("docs/")
        return inside.removesuffix(".py") + ".md" if inside.endswith(".py") else inside
    if repository_path.startswith("results/") and Path(repository_path).suffix in RESULTS:
        return repository_path
    return None


def repository_path(site: str) -> str:
    """Where the source of a page of the site is in the repository."""
    for inside, outside in PAGES.items():
        if outside == site:
            return inside
    if site.startswith("results/"):
        return site
    if site.startswith("tutorials/") and (ROOT / "docs" / site).with_suffix(".py").is_file():
        return "docs/" + site.removesuffix(".md") + ".py"
    return "docs/" + site


def rewrite_links(markdown: str, page: str) -> str:
    """Turn links to files of the repository into links within the site; what is no part of it becomes plain text.

    >>> rewrite_links("[a](docs/theory.md#taps) [b](LICENSE)", "index.md")
    '[a](theory.md#taps) b'
    """
    folder = posixpath.dirname(repository_path(page))

    def replace(match: re.Match[str]) -> str:
        image, text, target = match.groups()
        if "://" in target or target.startswith(("#", "mailto:")):
            return match.group()
        path, mark, anchor = target.partition("#")
        found = site_path(posixpath.normpath(posixpath.join(folder, path)))
        if found is None:
            return text
        return f"{image}[{text}]({posixpath.relpath(found, posixpath.dirname(page) or '.')}{mark}{anchor})"

    # code is left as it is
    parts = re.split(r"(^```.*?^```$)", markdown, flags=re.MULTILINE | re.DOTALL)
    return "".join(part if part.startswith("```") else _LINK.sub(replace, part) for part in parts)


def on_files(files: Any, config: Any) -> Any:
    """Add what lies outside of docs/, and the tutorials as pages."""
    from mkdocs.structure.files import File

    for inside, outside in PAGES.items():
        files.append(File.generated(config, outside, content=(ROOT / inside).read_text()))
    for path in sorted((ROOT / "results").glob("**/*")):
        # the runs of single seeds are summed up one folder above
        if path.suffix in RESULTS and "runs" not in path.parts:
            files.append(File.generated(config, path.relative_to(ROOT).as_posix(), abs_src_path=str(path)))
    for script in tutorials.scripts():
        LOG.info("running %s", script.name)
        page = tutorials.run(script)
        files.append(File.generated(config, f"tutorials/{script.stem}.md", content=page.markdown))
        for name, content in page.figures.items():
            files.append(File.generated(config, f"tutorials/{name}", content=content))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Links within the site; a tutorial also offers its script."""
    uri = page.file.src_uri
    if uri.startswith("tutorials/"):
        script = posixpath.basename(uri).removesuffix(".md") + ".py"
        markdown += f'\n<a href="../{script}" download>Download this page as a script</a>\n'
    return rewrite_links(markdown, uri)


def on_page_content(content: str, page: Any, config: Any, files: Any) -> str:
    """Formulas as MathML, which browsers show by themselves."""

    from latex2mathml.converter import convert

    def replace(match: re.Match[str]) -> str:
        display = "block" if match.group(1) == "div" else "inline"
        return str(convert(html.unescape(match.group(2)), display=display))

    return _FORMULA.sub(replace, content)
