"""Version of the package, which `pyproject.toml` reads."""

__version__ = "0.9.0"
