"""The ledger: who did what, chained by hash, in the same transaction as the change."""
