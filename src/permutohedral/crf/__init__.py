"""Dense conditional random fields: labels of points that agree with points like them.

`mean_field` turns energies, what each label costs at each point, into marginals; `Kernel` says which points are alike
and what it costs where their labels differ. The page docs/crf.md says what is computed, and how to choose the numbers.
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
