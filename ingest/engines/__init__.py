"""Engines: where the pure task functions of a run are carried out."""
