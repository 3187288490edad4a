"""Version of the package, which `pyproject.toml` reads."""

__version__ = "1.0.0"
