"""The consuming context: what is known of each world. It knows the fact, not the context that publishes it."""
