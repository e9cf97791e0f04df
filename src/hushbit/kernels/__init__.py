"""Numba kernels, each beside the NumPy definition that it must equal."""
