"""Drop-in replacement for SimpleCRF: its modules `denseCRF` and `denseCRF3D`, based on `permutohedral.crf`.

from permutohedral.compat.simplecrf import denseCRF, denseCRF3D
"""

from permutohedral.compat.simplecrf import denseCRF, denseCRF3D

__all__ = ["denseCRF", "denseCRF3D"]
