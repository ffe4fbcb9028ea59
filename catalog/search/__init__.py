"""Search over collections, in Chinese and English."""
