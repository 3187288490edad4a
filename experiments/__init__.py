"""The paper's experiments and ours: each is a folder with `run.py` and `report.py`, and an entry in `experiment`."""
