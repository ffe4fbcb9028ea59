"""The command-line functions of the mount, one module each."""
