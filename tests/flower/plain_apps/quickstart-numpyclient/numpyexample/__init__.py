"""A plain Flower app with a NumPyClient."""
