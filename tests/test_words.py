"""Words that readers of other projects would have to decode; CONTRIBUTING.md has the rules for English."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
WORDS = re.compile(
    r"\b(told|tells?(?!\()|telling|refus(e|es|ed|ing)|anew|at once|so many|beside|nobody|somebody|whoever"
    r"|mend(s|ed|ing)?|hand(s|ed)? on|would rather|people's|of one's own|as it lies)\b",
    flags=re.IGNORECASE,
)
SUFFIXES = {".py", ".md", ".cpp", ".hpp", ".yaml", ".toml"}
FOLDERS = ("src", "native", "docs", "tests", "experiments", "benchmarks", "tools")


def test_no_word_of_the_old_dialect() -> None:
    files = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*") if path.suffix in SUFFIXES]
    files += [
        ROOT / name
        for name in (
            "README.md",
            "CONTRIBUTING.md",
            "CHANGELOG.md",
            "SECURITY.md",
            "Makefile",
            "pyproject.toml",
            "hubconf.py",
        )
    ]
    found = [
        f"{path.relative_to(ROOT)}:{number}: {match[0]}"
        for path in files
        if path != Path(__file__).resolve() and "_build" not in path.parts
        for number, line in enumerate(path.read_text().splitlines(), start=1)
        if (match := WORDS.search(line))
    ]
    assert found == []
