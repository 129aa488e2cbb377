"""Other people's stacks: their connections, their sessions, their life cycles. Each module imports only its own library."""
