"""The catalog's commands, one module each."""
