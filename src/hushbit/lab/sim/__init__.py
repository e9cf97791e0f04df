"""Federated learning: data, models, training of many users at once, and the round loop."""
