"""Releases: drafts that are begun and begun again, and what is shown of a release."""
