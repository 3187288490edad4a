"""What programs written for pydensecrf import: its names and behaviour, over `permutohedral.crf`.

    import permutohedral.pydensecrf.densecrf as dcrf
    from permutohedral.pydensecrf.utils import unary_from_labels

docs/migrating.md says what differs: what ends the process there is an `InputError` here.
"""

import sys

from permutohedral.pydensecrf import densecrf, eigen, utils

__all__ = ["densecrf", "eigen", "replace", "utils"]


def replace() -> None:
    """Make `import pydensecrf` find this package, for programs that one cannot edit: call it before they are imported.

    import permutohedral.pydensecrf
    permutohedral.pydensecrf.replace()
    import pydensecrf.densecrf as dcrf      # this one
    """
    sys.modules["pydensecrf"] = sys.modules[__name__]
    for module in (densecrf, eigen, utils):
        sys.modules[f"pydensecrf.{module.__name__.rpartition('.')[2]}"] = module
