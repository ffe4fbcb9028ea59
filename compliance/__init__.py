"""Detection and treatment of personal data, licences, reports and the hash-chained ledger: a pure library."""
