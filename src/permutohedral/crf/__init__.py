"""Dense conditional random fields (Krähenbühl and Koltun 2011).

`mean_field` turns energies, the cost of each label at each point, into marginals. A `Kernel` defines which points are
similar, and the cost of different labels there.
"""

from permutohedral.crf.energies import energies_from_labels, energies_from_probabilities
from permutohedral.crf.inference import free_energy, mean_field
from permutohedral.crf.kernels import Kernel, bilateral_kernel, spatial_kernel

__all__ = [
    "Kernel",
    "bilateral_kernel",
    "energies_from_labels",
    "energies_from_probabilities",
    "free_energy",
    "mean_field",
    "spatial_kernel",
]
