"""Drop-in replacement for pydensecrf, based on `permutohedral.crf`.

    import permutohedral.compat.pydensecrf.densecrf as dcrf
    from permutohedral.compat.pydensecrf.utils import unary_from_labels

docs/guide/pydensecrf.md lists the differences: calls that crash in pydensecrf raise `InputError` here.
"""

import sys

from permutohedral.compat.pydensecrf import densecrf, eigen, utils

__all__ = ["densecrf", "eigen", "replace", "utils"]


def replace() -> None:
    """Make `import pydensecrf` import this package; call it before programs that you cannot edit.

    import permutohedral.compat.pydensecrf
    permutohedral.compat.pydensecrf.replace()
    import pydensecrf.densecrf as dcrf      # this package
    """
    sys.modules["pydensecrf"] = sys.modules[__name__]
    for module in (densecrf, eigen, utils):
        sys.modules[f"pydensecrf.{module.__name__.rpartition('.')[2]}"] = module
