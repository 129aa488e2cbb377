"""What an operator asks for: a doctor who looks at everything and says what to do."""
