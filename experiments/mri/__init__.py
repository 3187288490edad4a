"""Images from samples along trajectories, of the image or of its spectrum."""
