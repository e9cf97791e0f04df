"""Experiments: settings, cells and claims."""
