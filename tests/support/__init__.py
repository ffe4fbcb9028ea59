"""Real components that tests start, and the public files that they read."""
