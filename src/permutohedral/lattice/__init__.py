"""Features, lattices, pyramids, and the checks and memory limits of building them."""
