"""A small app for tests of a deployment."""
