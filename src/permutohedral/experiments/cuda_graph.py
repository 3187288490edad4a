"""A training step captured as a CUDA graph: one launch instead of hundreds, where the host would be the bottleneck."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

# steps before the capture, in which kernels are compiled and tuned
_WARMUP = 3


class CapturedStep:
    """Loss and gradients of a model, captured once and replayed for every batch of the same shape.

    The gradients are written into the `grad` of the parameters, which must be left in place.

    Args:
        model: whose step to capture; it must not wait for the device.
        loss: of the model's output and the clean images.
        batch: noisy and clean images, for their shapes.
        autocast: dtype to compute in, None for that of the weights.
    """

    def __init__(
        self,
        model: nn.Module,
        loss: Callable[[Tensor, Tensor], Tensor],
        batch: tuple[Tensor, Tensor],
        autocast: torch.dtype | None = None,
    ) -> None:
        self.noisy, self.clean = (images.clone() for images in batch)

        def compute() -> Tensor:
            # casts that autocast has cached would be missing in the replay
            with torch.autocast("cuda", autocast, enabled=autocast is not None, cache_enabled=False):
                output = model(self.noisy)
            return loss(output, self.clean)

        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(_WARMUP):
                compute().backward()
        torch.cuda.current_stream().wait_stream(stream)
        model.zero_grad(set_to_none=True)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.loss = compute()
            self.loss.backward()

    def __call__(self, noisy: Tensor, clean: Tensor) -> Tensor:
        """The loss of a batch; its gradients are then in the `grad` of the parameters."""
        self.noisy.copy_(noisy)
        self.clean.copy_(clean)
        self.graph.replay()
        return self.loss.detach()
