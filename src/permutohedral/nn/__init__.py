"""Layers, with the conventions of `torch.nn`."""

from permutohedral.nn.bilateral import BilateralConvolution2d, BilateralFilter
from permutohedral.nn.convolution import PermutohedralConvolution
from permutohedral.nn.crf import DenseCRF
from permutohedral.nn.gaussian import GaussianFilter

__all__ = ["BilateralConvolution2d", "BilateralFilter", "DenseCRF", "GaussianFilter", "PermutohedralConvolution"]
