"""The paper's experiments and ours: a folder with `run.py` and rows in YAML each, and a line in `registry`."""
