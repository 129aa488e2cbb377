"""The producing context: worlds and their scans. It knows of no consumer."""
