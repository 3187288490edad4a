"""Tutorials are scripts in cells, `# %% [markdown]` and `# %%`: run them, and turn what they do into pages.

Editors open such a script as a notebook. The page holds the text, the code, what it printed, and its figures.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "tutorials"

_MARK = "# %%"
_MARKDOWN = "# %% [markdown]"


@dataclass(frozen=True)
class Cell:
    """A piece of a script.

    Attributes:
        text: Markdown, or code.
        is_code: which of both.
        line: of the script on which it begins, from 0.
    """

    text: str
    is_code: bool
    line: int


@dataclass(frozen=True)
class Page:
    """What a script became.

    Attributes:
        markdown: the page.
        figures: PNG files by name, which the page refers to.
    """

    markdown: str
    figures: dict[str, bytes] = field(default_factory=dict)


def scripts() -> list[Path]:
    """All tutorials."""
    return sorted(FOLDER.glob("*.py"))


def parse(script: str) -> list[Cell]:
    """The cells of a script.

    >>> [cell.text for cell in parse("# %% [markdown]\\n# # Title\\n# Text.\\n# %%\\nx = 1\\n")]
    ['# Title\\nText.', 'x = 1']
    """
    cells = []
    lines = script.splitlines()
    starts = [number for number, line in enumerate(lines) if line.startswith(_MARK)]
    for start, end in zip(starts, [*starts[1:], len(lines)], strict=True):
        body = lines[start + 1 : end]
        is_code = not lines[start].startswith(_MARKDOWN)
        if not is_code:
            body = [line.removeprefix("#").removeprefix(" ") for line in body]
        text = "\n".join(body).strip("\n")
        if text:
            cells.append(Cell(text, is_code, start + 1))
    return cells


def run(path: Path) -> Page:
    """Run a script from its first cell to its last, in a namespace of its own."""
    parts: list[str] = []
    figures: dict[str, bytes] = {}
    namespace: dict[str, Any] = {"__name__": "__main__"}
    for cell in parse(path.read_text()):
        if not cell.is_code:
            parts.append(cell.text)
            continue
        printed = io.StringIO()
        # empty lines before the code keep the line numbers of a traceback right
        code = compile("\n" * cell.line + cell.text, str(path), "exec")
        with contextlib.redirect_stdout(printed):
            exec(code, namespace)
        parts.append(f"```python\n{cell.text}\n```")
        if printed.getvalue():
            parts.append(f"```text\n{printed.getvalue().rstrip()}\n```")
        for png in _drawn(namespace.pop("figure", None)):
            name = f"{path.stem}_{len(figures) + 1}.png"
            figures[name] = png
            parts.append(f"![Figure {len(figures)} of this tutorial]({name})")
    return Page("\n\n".join(parts) + "\n", figures)


def _drawn(figure: Any) -> Iterator[bytes]:
    """What a cell drew, as PNG: the figures of pyplot, which are closed, and the variable `figure` if it set one."""
    import matplotlib.pyplot as plt

    figures = [plt.figure(number) for number in plt.get_fignums()]
    for drawn in [*figures, *([] if figure is None else [figure])]:
        content = io.BytesIO()
        drawn.savefig(content, format="png", dpi=110, bbox_inches="tight")
        yield content.getvalue()
    plt.close("all")
