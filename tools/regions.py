"""Regions of our pages that are filled from what was measured.

A region stands between `<!-- table: NAME -->` and `<!-- end of table -->`.
"""

from __future__ import annotations

import re
from collections.abc import Callable

_REGION = re.compile(r"(<!-- table: (?P<name>[^ ]+) -->\n)(?P<body>.*?)(<!-- end of table -->)", flags=re.DOTALL)


def fill(text: str, render: Callable[[str], str | None]) -> str:
    """The same text with every region filled.

    Args:
        text: of a page.
        render: the content of the region of a name; None leaves it as it is.

    >>> fill("<!-- table: a -->\\nold\\n<!-- end of table -->", {"a": "new"}.get)
    '<!-- table: a -->\\nnew\\n<!-- end of table -->'
    """

    def replace(match: re.Match[str]) -> str:
        content = render(match["name"])
        return match.group() if content is None else f"{match.group(1)}{content}\n{match.group(4)}"

    return _REGION.sub(replace, text)
