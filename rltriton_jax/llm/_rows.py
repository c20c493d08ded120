"""Discounted returns along the rows of a batch, with errors that name the function which was called."""

import jax
from jax.typing import ArrayLike

from .._returns import discounted_returns
from . import _checks as checks


def row_returns(
    function: str, rewards: jax.Array, live: jax.Array, discount: ArrayLike, implementation: str | None
) -> jax.Array:
    """G_t = r_t + discount G_next over the live entries of each row of `[rows, T]`."""
    g = checks.read_floats(function, "discount", discount)
    if g.ndim and (g.ndim != rewards.ndim or any(n not in (1, m) for n, m in zip(g.shape, rewards.shape))):
        raise ValueError(
            f"{function}: discount has shape {g.shape}; pass a scalar or shape {rewards.shape}, where axes may be 1"
        )
    checks.read_implementation(function, implementation)
    return discounted_returns(rewards, discount=g, mask=live, time_axis=-1, implementation=implementation)
