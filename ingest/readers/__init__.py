"""Readers: from the bytes of one split to batches of records and rejects."""
