"""What every endpoint shares: problem details, the caller, ranges, cursors, request ids, metrics."""
