"""What stands between a host and the fastest way to its data: checks, each with a way to better it."""
