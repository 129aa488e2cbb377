"""What operators look at and do: one module per subject, each a few calls of SQL functions."""
