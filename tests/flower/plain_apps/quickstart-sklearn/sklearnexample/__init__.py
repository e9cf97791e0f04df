"""A plain Flower app with scikit-learn."""
