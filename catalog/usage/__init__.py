"""Which job opened which release on which node, and what nodes did about withdrawals."""
