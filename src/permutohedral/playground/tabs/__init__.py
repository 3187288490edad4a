"""The tabs of the page: controls, and which computations they ask for."""
