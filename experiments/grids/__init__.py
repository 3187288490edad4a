"""Filters of the same features on the lattice and on grids."""
