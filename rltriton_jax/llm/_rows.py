"""Discounted returns along the rows of a batch, with errors that name the function which was called."""

import jax
from jax.typing import ArrayLike

from .._call import Call
from .._returns import discounted
from . import _checks as checks


def row_returns(
    function: str, name: str, rewards: jax.Array, live: jax.Array, discount: ArrayLike, implementation: str | None
) -> jax.Array:
    """G_t = r_t + discount G_next over the live entries of each row of the argument `name`, `[rows, T]`."""
    checks.read_implementation(function, implementation)
    return discounted(
        Call.on(function, name, rewards, -1, implementation), rewards, discount, implementation, mask=live
    )
