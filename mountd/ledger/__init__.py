"""The access ledger of a node: which job opened which release, told to the catalog."""
