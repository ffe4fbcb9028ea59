"""Principals and their tokens."""
