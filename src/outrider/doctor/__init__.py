"""`outrider doctor`: checks of the server, the log, the workers and the brokers, each with its remedy."""
