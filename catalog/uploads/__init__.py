"""Filling a draft: which objects are missing, receiving them, sealing it."""
