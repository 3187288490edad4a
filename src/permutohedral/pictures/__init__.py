"""Picture files, and what is done with them."""

# extent of a tile with its margins, in pixels; a picture of no more pixels than a tile is filtered at once
TILE = 2048
