"""Digits that are rotated or scaled at test time only."""
