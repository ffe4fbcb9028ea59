"""What the four packages share: errors, settings, units, console output and the command line's entry."""

__version__ = "0.1.0"
