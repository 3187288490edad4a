"""What is done with values on a lattice: splat, blur, convolve, slice, and their gradients."""
