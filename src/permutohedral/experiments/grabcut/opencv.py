"""OpenCV's GrabCut, the peer of the table."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from permutohedral.errors import InputError
from permutohedral.models.cutout import Trimap

# as often as its authors iterate
_ITERATIONS = 5


def opencv_grabcut(photo: Tensor, trimap: Trimap) -> Tensor:
    """The foreground, bool `[height, width]`; unknown pixels begin as foreground, as in the paper."""
    try:
        import cv2
    except ModuleNotFoundError as error:
        raise InputError("this row needs OpenCV: pip install opencv-python-headless") from error
    # it is compared with one thread of ours
    cv2.setNumThreads(1)
    picture = (photo.permute(1, 2, 0) * 255).round().byte().cpu().numpy()[..., ::-1].copy()
    mask = np.full(picture.shape[:2], cv2.GC_BGD, np.uint8)
    mask[trimap.unknown.cpu().numpy()] = cv2.GC_PR_FGD
    mask[trimap.foreground.cpu().numpy()] = cv2.GC_FGD
    models = np.zeros((1, 65)), np.zeros((1, 65))
    cv2.grabCut(picture, mask, None, *models, _ITERATIONS, cv2.GC_INIT_WITH_MASK)
    return torch.from_numpy((mask == cv2.GC_FGD) | (mask == cv2.GC_PR_FGD))
