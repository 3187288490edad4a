"""The data of the experiments: found in a folder or downloaded, and always checked."""
