"""What programs written for SimpleCRF import: its modules `denseCRF` and `denseCRF3D`, over `permutohedral.crf`.

from permutohedral.simplecrf import denseCRF, denseCRF3D
"""

from permutohedral.simplecrf import denseCRF, denseCRF3D

__all__ = ["denseCRF", "denseCRF3D"]
