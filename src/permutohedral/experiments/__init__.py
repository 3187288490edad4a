"""One file per table of the paper: `run(config) -> Result`."""
