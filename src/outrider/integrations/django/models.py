"""None: Outrider's tables are in a schema of their own. Django tells apps about migrations only if they have this module."""
