"""Lattices, finite point sets and the quantizer."""
