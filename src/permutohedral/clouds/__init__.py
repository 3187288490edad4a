"""Point clouds of any size: heights, tiles, crops to train on, and classes for all points."""
