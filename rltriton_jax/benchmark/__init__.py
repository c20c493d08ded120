"""Speed and memory of every estimator, against a copy of the same bytes and against plain JAX."""
