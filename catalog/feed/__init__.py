"""The feed: signed events in an unbroken sequence, its head, and the snapshot a new node starts from."""
