"""The node daemon: shows releases read-only under /public from a verified local cache."""
