"""Figures of the documentation, drawn from the tables that the operators themselves use."""

from figures.filters import draw_filter, draw_neighborhood
from figures.levels import draw_levels
from figures.simplices import draw_simplices
from figures.steps import draw_steps, make_scene

__all__ = ["draw_filter", "draw_levels", "draw_neighborhood", "draw_simplices", "draw_steps", "make_scene"]
