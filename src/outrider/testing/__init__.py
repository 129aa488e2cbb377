"""What an adapter and its users run in their own tests: contract suites as a product. Imports no driver."""
