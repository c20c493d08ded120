"""Token-level pieces: whitening over live tokens, REINFORCE++, outcome placement and turn values over tokens."""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import ArrayLike

from . import _checks as checks
from ._rows import row_returns
from ._segments import moments, over_all


class ReinforcePlusPlus(NamedTuple):
    """Result of `reinforce_plus_plus`: whitened and plain returns, both `[batch, tokens]`."""

    advantages: jax.Array
    returns: jax.Array


def masked_whiten(
    x: ArrayLike, mask: ArrayLike | None, *, ddof: int = 1, eps: ArrayLike = 1e-8, shift_mean: bool = True
) -> jax.Array:
    """Shifts and scales the live entries to mean 0 and variance 1.

        y = (x - mean) / sqrt(var + eps),  var = sum((x - mean)^2) / (n - ddof)

    over all n live entries of the array, eps inside the root. Two passes counted from the least entry, so a large
    common offset costs no digits. Fewer than two live entries give 0. Dead entries give 0 and are not read.

    Args:
        x: any shape, for example advantages `[batch, tokens]`. Integers are promoted.
        mask: the shape of `x`, nonzero for live entries; None for all.
        ddof: 1 for the sample variance, 0 for the population variance.
        eps: added to the variance.
        shift_mean: False adds the mean back, so that only the scale changes.

    Returns:
        The shape and floating dtype of `x` (computed in at least float32). NaN in a live entry reaches all of them.

    Raises:
        TypeError: an argument of the wrong dtype.
        ValueError: a `mask` of another shape, a `ddof` other than 0 or 1, a negative or non-finite `eps`.

    Example:
        >>> import jax.numpy as jnp
        >>> from rltriton_jax.llm import masked_whiten
        >>> x = jnp.array([[1.0, 2.0, jnp.nan], [3.0, jnp.nan, jnp.nan]])
        >>> print(masked_whiten(x, jnp.array([[1, 1, 0], [1, 0, 0]])))
        [[-1.  0.  0.]
         [ 1.  0.  0.]]

    The usual advantage whitening of PPO for language models.
    """
    name = "masked_whiten"
    x = checks.read_floats(name, "x", x)
    live = checks.read_flags(name, "mask", mask, x.shape, "the shape of x")
    return _read_and_whiten(name, x, live, ddof, eps, shift_mean)


def _read_and_whiten(
    name: str, x: jax.Array, live: jax.Array, ddof: int, eps: ArrayLike, shift_mean: bool = True
) -> jax.Array:
    margin = checks.read_scalar(name, "eps", eps, checks.compute_dtype(x.dtype), least=0)
    return _whiten(x, live, margin, ddof=checks.read_ddof(name, ddof), shift_mean=bool(shift_mean))


@partial(jax.jit, static_argnames=("ddof", "shift_mean"))
def _whiten(x: jax.Array, live: jax.Array, margin: jax.Array, *, ddof: int, shift_mean: bool) -> jax.Array:
    # In units of at least sqrt(eps), eps is no large number of units squared.
    least = jnp.sqrt(lax.stop_gradient(margin))
    all_live = moments(jnp.where(live, x, 0).astype(margin.dtype), live, over_all(), least=least)
    variance = all_live.variance(ddof) + margin * all_live.per_unit * all_live.per_unit
    out = all_live.deviation / jnp.sqrt(jnp.where(variance == 0, 1, variance))
    if not shift_mean:
        out = out + all_live.mean
    return jnp.where(live & (all_live.members >= 2), out, 0).astype(x.dtype)


def reinforce_plus_plus(
    rewards: ArrayLike,
    mask: ArrayLike,
    *,
    discount: ArrayLike = 1.0,
    ddof: int = 1,
    eps: ArrayLike = 1e-8,
    implementation: str | None = None,
) -> ReinforcePlusPlus:
    """REINFORCE++: discounted returns over the live tokens of each row, whitened over the batch.

        G_t = r_t + discount G_next,  next = the next live token of the row (0 behind the last)
        A = masked_whiten(G, mask)

    Tokens the policy did not produce (tool results, padding) neither end the return nor cost a factor of `discount`:
    the result is that of the rows with these tokens deleted. Their rewards are not read, so a reward must stand on a
    live token (`place_outcome`).

    Args:
        rewards: `[batch, tokens]`.
        mask: `[batch, tokens]`, nonzero for tokens the policy produced.
        discount: scalar, or `[batch, tokens]`.
        ddof, eps: of `masked_whiten`.
        implementation: of `discounted_returns`.

    Returns:
        ReinforcePlusPlus(advantages, returns), each `[batch, tokens]` in the floating dtype of `rewards`; 0 at dead
        tokens.

    Raises:
        TypeError: an argument of the wrong dtype.
        ValueError: an argument of the wrong shape.

    Example:
        >>> import jax.numpy as jnp
        >>> from rltriton_jax.llm import reinforce_plus_plus
        >>> rewards = jnp.array([[0.0, 0.0, 0.0, 1.0]])
        >>> print(reinforce_plus_plus(rewards, jnp.array([[1, 1, 0, 1]]), discount=0.5).returns)
        [[0.25 0.5  0.   1.  ]]

    REINFORCE++: arXiv:2501.03262.
    """
    name = "reinforce_plus_plus"
    x = checks.read_floats(name, "rewards", rewards)
    checks.check_rank(name, "rewards", x, ["batch", "tokens"])
    live = checks.read_flags(name, "mask", mask, x.shape, "the shape of rewards")
    wide = x.astype(checks.compute_dtype(x.dtype))
    returns = row_returns(name, "rewards", wide, live, discount, implementation)
    advantages = _read_and_whiten(name, returns, live, ddof, eps)
    return ReinforcePlusPlus(advantages.astype(x.dtype), returns.astype(x.dtype))


def place_outcome(scores: ArrayLike, mask: ArrayLike) -> jax.Array:
    """Token rewards that hold each row's score on its last live token, and 0 elsewhere.

        r_t = score if t = max{u: mask_u} else 0

    The last live token is found by position, so padding on either side and holes in the mask do not move it. A row
    without a live token gives zeros.

    Args:
        scores: `[batch]` (or `[...]`), one score a row.
        mask: `[batch, tokens]` (or `[..., tokens]`), nonzero for tokens the policy produced.

    Returns:
        `[batch, tokens]`, in the floating dtype of `scores`.

    Raises:
        TypeError: an argument of the wrong dtype.
        ValueError: a `mask` that is not of the shape of `scores` with one token axis behind it.

    Example:
        >>> import jax.numpy as jnp
        >>> from rltriton_jax.llm import place_outcome
        >>> print(place_outcome(jnp.array([2.0, 3.0]), jnp.array([[0, 1, 1, 0], [0, 0, 0, 0]])))
        [[0. 0. 2. 0.]
         [0. 0. 0. 0.]]
    """
    name = "place_outcome"
    x = checks.read_floats(name, "scores", scores)
    shape = jnp.shape(checks.to_array(name, "mask", mask, flag=True))
    if shape[:-1] != x.shape or not shape:
        raise ValueError(
            f"{name}: mask has shape {shape}, scores {x.shape}; pass a mask of shape [*scores.shape, tokens]"
        )
    live = checks.read_flags(name, "mask", mask, shape, "")
    position = lax.broadcasted_iota(jnp.int32, shape, len(shape) - 1)
    last = jnp.max(jnp.where(live, position, -1), axis=-1, keepdims=True, initial=-1)
    return jnp.where(position == last, jnp.expand_dims(x, -1), 0)


def turn_to_tokens(turn_values: ArrayLike, turn_ids: ArrayLike) -> jax.Array:
    """Spreads one value a turn over the tokens of that turn.

        y[b, i] = turn_values[b, turn_ids[b, i]], 0 where turn_ids is -1

    Args:
        turn_values: `[batch, turns]` (or `[..., turns]`).
        turn_ids: integers `[batch, tokens]`: the turn of each token; -1 for tokens of no turn.

    Returns:
        `[batch, tokens]`, in the floating dtype of `turn_values`.

    Raises:
        TypeError: `turn_ids` is not of integers.
        ValueError: batch axes that differ, an id below -1 or not below `turns`. Under jit such an id gives NaN.

    Example:
        >>> import jax.numpy as jnp
        >>> from rltriton_jax.llm import turn_to_tokens
        >>> print(turn_to_tokens(jnp.array([[0.5, -1.0]]), jnp.array([[0, 0, -1, 1, -1]])))
        [[ 0.5  0.5  0.  -1.   0. ]]
    """
    name = "turn_to_tokens"
    x = checks.read_floats(name, "turn_values", turn_values)
    ids = checks.read_ids(name, "turn_ids", turn_ids, None, "")
    if not x.ndim or not ids.ndim or x.shape[:-1] != ids.shape[:-1]:
        raise ValueError(
            f"{name}: turn_values has shape {x.shape} and turn_ids {ids.shape}; pass [batch, turns] and [batch, tokens]"
        )
    checks.check_ids_below(name, "turn_ids", ids, x.shape[-1], "turns")
    # A turn nobody points at is not read; one gather row of zeros keeps an array without turns legal.
    padded = jnp.concatenate([x, jnp.zeros((*x.shape[:-1], 1), x.dtype)], axis=-1)
    known = (ids >= 0) & (ids < x.shape[-1])
    taken = jnp.take_along_axis(padded, jnp.where(known, ids, x.shape[-1]), axis=-1)
    return jnp.where(known | (ids == -1), taken, jnp.nan)
