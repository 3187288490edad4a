"""Splat, convolve, slice; bilateral, Gaussian and learned filters; exact sums; accuracy."""
