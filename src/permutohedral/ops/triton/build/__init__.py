"""From points to a lattice: embedding, keys, hash tables, neighbors."""
