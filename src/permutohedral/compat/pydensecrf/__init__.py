"""Drop-in replacement for pydensecrf, based on `permutohedral.crf`.

    import permutohedral.compat.pydensecrf.densecrf as dcrf
    from permutohedral.compat.pydensecrf.utils import unary_from_labels

docs/guide/pydensecrf.md lists the differences: calls that crash in pydensecrf raise `InputError` here.
"""

from permutohedral.compat.pydensecrf import densecrf, eigen, utils

__all__ = ["densecrf", "eigen", "utils"]
