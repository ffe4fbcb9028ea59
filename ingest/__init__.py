"""Corpora in, shards out."""
