"""Networks, with trained weights where `from_pretrained` loads them."""

from permutohedral.models.image_denoiser import Denoiser
from permutohedral.models.point_segmentation import PointSegmenter

__all__ = ["Denoiser", "PointSegmenter"]
