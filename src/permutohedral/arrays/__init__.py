"""People's arrays beyond memory, as files: Zarr, OME-Zarr and TIFF, filtered tile by tile into new stores."""
