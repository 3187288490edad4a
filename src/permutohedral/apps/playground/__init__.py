"""Interactive page to try filters with sliders; needs the extra `playground`."""
