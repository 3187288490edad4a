"""Neural fields: the permutohedral encoding next to a hash grid and a frequency encoding."""
