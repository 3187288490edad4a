"""The primitives, their backends, and their derivatives."""
