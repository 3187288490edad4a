"""Interactive page to try filters with sliders; needs the extra `playground`.

The page is served before torch is loaded: only `compute`, `photos` and `Job.run` import it, for the first photo.
"""
