"""The node's verified cache: sealed objects, partial files, manifests and the last good state."""
