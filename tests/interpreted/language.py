"""Triton's language in the form that its interpreter runs, for the whole session.

The interpreter replaces the functions of the language at every launch, and again wherever a kernel calls a function of
its own, by looking through all members of the language: more than a third of a test's time.
"""

from __future__ import annotations

from types import SimpleNamespace

import triton.language as tl
from triton.runtime import interpreter


def keep_replaced() -> None:
    """Replace them once; does nothing with a Triton that keeps no account of what it has replaced."""
    if not hasattr(interpreter, "_LangPatchScope"):
        return
    # what a kernel can see of the language
    interpreter._patch_lang(SimpleNamespace(__globals__={"tl": tl, "core": tl.core}))
    nothing = interpreter._LangPatchScope()
    interpreter._patch_lang = lambda function: nothing
