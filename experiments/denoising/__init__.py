"""The paper's Table (b): denoising BSDS500."""
