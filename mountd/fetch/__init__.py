"""Bringing chunks from the store into the cache: single flight, retries, prefetch, verification."""
