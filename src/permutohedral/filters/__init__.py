"""What the filters of `functional.py` are made of: steps on a lattice, sums without one, the choice between them."""
