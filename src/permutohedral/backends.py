"""Backends: which ones can run, which one a call uses, and why.

>>> import torch
>>> import permutohedral as ph
>>> "reference" in ph.backends.available()
True
>>> with ph.backends.use("reference"):
...     image = ph.bilateral_filter(torch.rand(3, 9, 9), sigma_space=1.0, sigma_color=0.1)
"""

from permutohedral.ops.binding import explain_call
from permutohedral.ops.dispatch import available, explain, set_default, use

__all__ = ["available", "explain", "explain_call", "set_default", "use"]
