"""Installs the drop-ins in processes started by a program that has them: workers of multiprocessing and joblib.

Python runs this file at its start if `install` has put the folder in PYTHONPATH. It then runs the `sitecustomize` that
it hides, if there is one.
"""

import importlib
import os
import sys

if __name__ == "sitecustomize":
    _folder = os.path.dirname(__file__)
    sys.path[:] = [path for path in sys.path if path != _folder]
    _this = sys.modules.pop(__name__)
    try:
        importlib.import_module(__name__)
    except ModuleNotFoundError:
        sys.modules[__name__] = _this
    _names = list(filter(None, os.environ.get("PERMUTOHEDRAL_COMPAT", "").split(",")))
    try:
        from permutohedral.compat import install
    except ModuleNotFoundError:
        # another interpreter, without this package
        pass
    else:
        # without names, it would install all
        if _names:
            install(*_names)
