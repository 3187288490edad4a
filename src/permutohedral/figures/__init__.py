"""Pictures of lattices, drawn from the tables that the operators themselves use."""

from permutohedral.figures.filters import draw_filter, draw_neighborhood
from permutohedral.figures.levels import draw_levels
from permutohedral.figures.simplices import draw_simplices
from permutohedral.figures.steps import STEPS, Scene, draw_steps, make_scene

__all__ = [
    "STEPS",
    "Scene",
    "draw_filter",
    "draw_levels",
    "draw_neighborhood",
    "draw_simplices",
    "draw_steps",
    "make_scene",
]
