"""One function per job on files."""
