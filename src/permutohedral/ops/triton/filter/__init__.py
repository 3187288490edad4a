"""Functions of values on a lattice: splat, blur, convolve, slice, and their gradients."""
