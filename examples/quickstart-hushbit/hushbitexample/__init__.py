"""Federated digits with private bits."""
