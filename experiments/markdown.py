"""Tables in Markdown."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence


def markdown_table(titles: Sequence[str], rows: Iterable[Sequence[str]], text_columns: Collection[int] = (0,)) -> str:
    """Format a table, with numbers to the right and text to the left.

    Args:
        titles: headings of the columns.
        rows: cells, one for each column.
        text_columns: indices of the columns that hold text.

    >>> print(markdown_table(["method", "dB"], [["noisy", "20.17"]]))
    | method | dB |
    | --- | ---: |
    | noisy | 20.17 |
    """
    marks = ["---" if column in text_columns else "---:" for column in range(len(titles))]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (titles, marks, *rows))
