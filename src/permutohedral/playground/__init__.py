"""A page on this machine to try filters with sliders; needs the extra `playground`.

The page is up before torch is loaded: only `compute/` imports it, when the first picture is asked for.
"""
