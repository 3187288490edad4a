"""Configuration of the documentation: `make docs`. Pages load nothing from other servers."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

from docutils import nodes
from latex2mathml.converter import convert
from sphinx_gallery.sorting import ExplicitOrder

sys.path.insert(0, str(Path(__file__).parent))

project = "permutohedral"
author = copyright = "The permutohedral authors"
extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "sphinx_gallery.gen_gallery",
]
exclude_patterns = ["tutorials", "auto_tutorials/*.ipynb", "auto_tutorials/*.py.md5"]
html_theme = "furo"
html_title = "permutohedral"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_show_sphinx = False
html_copy_source = False
html_show_sourcelink = False
html_math_renderer = "mathml"

# the levels of headings that links may name
myst_heading_anchors = 4
myst_enable_extensions = ["dollarmath", "deflist"]
# a single pair of backticks in docstrings is code
default_role = "code"
autodoc_member_order = "bysource"
autodoc_typehints = "none"
autodoc_default_options = {"members": True}
autodoc_preserve_defaults = True
napoleon_use_rtype = False
napoleon_use_ivar = True
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True
suppress_warnings = ["config.cache"]

TUTORIALS = [
    "first_filter",
    "bilateral_features",
    "scattered_data",
    "train_a_pcnn",
    "learned_bandwidths",
    "neural_field",
    "own_laser_scans",
    "choosing_s_and_scale",
    "speed_and_memory",
]
sphinx_gallery_conf = {
    "examples_dirs": "tutorials",
    "gallery_dirs": "auto_tutorials",
    "filename_pattern": r"\.py$",
    "within_subsection_order": ExplicitOrder([f"{name}.py" for name in TUTORIALS]),
    "abort_on_example_error": True,
    "capture_repr": (),
    "write_computation_times": False,
    "download_all_examples": False,
    "show_signature": False,
    "min_reported_time": 1000,
    "remove_config_comments": True,
}


def link_tutorials(app: Any, page: str, source: list[str]) -> None:
    """Point links to the scripts of tutorials at the pages that are made of them."""
    source[0] = re.sub(
        r"\]\(([./]*)tutorials/(\w+)\.py\)", r"](\1auto_tutorials/\2.rst)", source[0]
    )


def write_formula(translator: Any, node: nodes.math) -> None:
    """Write a formula as MathML, which browsers render without scripts."""
    display = "block" if isinstance(node, nodes.math_block) else "inline"
    translator.body.append(convert(node.astext(), display=display))
    raise nodes.SkipNode


def setup(app: Any) -> None:
    """Register the hooks above."""
    app.connect("source-read", link_tutorials)
    app.add_html_math_renderer("mathml", (write_formula, None), (write_formula, None))
