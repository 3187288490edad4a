"""Networks on point clouds: the lattice next to voxels, a cubic grid with interpolation, and PointNet++."""
