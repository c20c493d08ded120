"""Runs every estimator by every implementation on a roll-out, against a float64 loop and lax.associative_scan."""

from ._main import main as main
