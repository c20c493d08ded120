"""TRACE: turn rewards from the log-probability of the gold answer, and their windowed credit."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import ArrayLike

from .._returns import n_step_returns
from . import _checks as checks
from ._tokens import turn_to_tokens


def trace_turn_rewards(
    gold_log_probs: ArrayLike, *, eps: ArrayLike = 0.1, turn_mask: ArrayLike | None = None
) -> jax.Array:
    """Reward of each turn: how much closer it brought the model to the gold answer.

        d_t = eps - l_t,  V_t = log(d_0 / d_t),  delta_t = V_{t+1} - V_t = log(d_t / d_{t+1})

    with l_t the mean log-probability of the gold answer before turn t. The rewards of a rollout sum to V_T.

    Args:
        gold_log_probs: `[batch, turns + 1]` (or `[..., turns + 1]`): l before each turn, and after the last one.
        eps: keeps d positive.
        turn_mask: `[batch, turns]`, nonzero for turns that exist; turn t reads l_t and l_{t+1}. None for all.

    Returns:
        delta `[batch, turns]`, in the floating dtype of `gold_log_probs`; 0 for turns that do not exist.

    Raises:
        TypeError: an argument of the wrong dtype.
        ValueError: no score at all, a `turn_mask` of the wrong shape, and where the values can be read a negative or
            non-finite `eps`, or a live score that is not finite or not below `eps`. Under jit such a score gives NaN.

    Example:
        >>> import jax.numpy as jnp
        >>> from rltriton_jax.llm import trace_turn_rewards
        >>> delta = trace_turn_rewards(jnp.array([[-5.1187, -1.5712]]), eps=0.001)
        >>> print(f"{delta.item():.4f}")
        1.1806

    The turn reward of TRACE.
    """
    name = "trace_turn_rewards"
    x = checks.read_floats(name, "gold_log_probs", gold_log_probs)
    if not x.ndim or not x.shape[-1]:
        raise ValueError(
            f"{name}: gold_log_probs has shape {x.shape}; pass [batch, turns + 1], one score more than turns"
        )
    shape = (*x.shape[:-1], x.shape[-1] - 1)
    live = checks.read_flags(name, "turn_mask", turn_mask, shape, "one entry for each turn")
    none = jnp.zeros((*x.shape[:-1], 1), bool)
    read = jnp.concatenate([live, none], axis=-1) | jnp.concatenate([none, live], axis=-1)
    checks.check_finite(name, "gold_log_probs", x, read)
    dtype = checks.compute_dtype(x.dtype)
    margin = checks.read_scalar(name, "eps", eps, dtype, least=0)
    gap = jnp.where(read, margin - x.astype(dtype), 1)
    if gap.size and checks.is_concrete(gap) and bool((np.asarray(gap) <= 0).any()):
        raise ValueError(
            f"{name}: gold_log_probs holds a score that is not below eps = {float(margin):g}; pass log-probabilities"
        )
    log_gap = jnp.log(jnp.where((gap > 0) & (gap < jnp.inf), gap, jnp.nan))
    return jnp.where(live, log_gap[..., :-1] - log_gap[..., 1:], 0).astype(x.dtype)


def trace_credit(
    deltas: ArrayLike,
    outcome_advantage: ArrayLike,
    *,
    window: int = 3,
    discount: ArrayLike = 0.8,
    terminal_scale: ArrayLike = 2.0,
    turn_mask: ArrayLike | None = None,
    implementation: str | None = None,
) -> jax.Array:
    """Credit of each turn: the normalised discounted mean of the next `window` turn rewards, and the outcome's share.

        h = min(t + window - 1, T - 1)
        c_t = sum_{j=0..h-t} g^j delta_{t+j} / sum_{j=0..h-t} g^j   (+ terminal_scale g^(T-t) A_out where h = T - 1)

    With `window=0` only the last turn gets anything: terminal_scale g A_out. T counts the turns of the rollout that
    exist. `trace_token_advantages` spreads the result over tokens.

    Args:
        deltas: `[batch, turns]` (or `[..., turns]`), from `trace_turn_rewards`.
        outcome_advantage: `[batch]` (or `[...]`): A_out, in TRACE
            `group_advantages(scores, ids, **GROUP_PRESETS["trace"])`.
        window: K, a Python int.
        discount: g, a scalar of 0 or more.
        terminal_scale: a scalar.
        turn_mask: `[batch, turns]`, nonzero for turns that exist; the others are skipped and give 0. None for all.
        implementation: of `n_step_returns`.

    Returns:
        c `[batch, turns]`, in the promoted floating dtype of `deltas` and `outcome_advantage`.

    Raises:
        TypeError: an argument of the wrong dtype, a `window` that is no int.
        ValueError: a wrong shape, a negative `window`, a negative or non-finite `discount`.

    Example:
        >>> import jax.numpy as jnp
        >>> from rltriton_jax.llm import trace_credit
        >>> credit = trace_credit(jnp.array([[0.2, -0.1, 0.4]]), jnp.array([1.25]))
        >>> [f"{c:.4f}" for c in credit[0].tolist()]
        ['1.4341', '1.7222', '2.4000']

    The credit of TRACE.
    """
    name = "trace_credit"
    (x, outcome), out_dtype = checks.read_carriers(name, deltas=deltas, outcome_advantage=outcome_advantage)
    if not x.ndim:
        raise ValueError(f"{name}: deltas has shape (); pass an array of shape [batch, turns]")
    checks.check_shape(name, "outcome_advantage", outcome, x.shape[:-1], "that of deltas without its turns")
    live = checks.read_flags(name, "turn_mask", turn_mask, x.shape, "the shape of deltas")
    steps = checks.read_static_int(name, "window", window, least=0)
    dtype = checks.compute_dtype(out_dtype)
    g = checks.read_scalar(name, "discount", discount, dtype, least=0)
    scale = checks.read_scalar(name, "terminal_scale", terminal_scale, dtype)
    checks.read_implementation(name, implementation)
    turns = x.shape[-1]
    if not x.size:
        return jnp.zeros(x.shape, out_dtype)

    left = lax.cumsum(live.astype(jnp.int32), axis=x.ndim - 1, reverse=True)
    reach = min(max(steps, 1), turns)
    powers = jnp.cumprod(jnp.broadcast_to(g, (reach,)))
    entry = jnp.clip(left, 1, reach) - 1
    shares = live & (left <= reach)
    # Selected before the product, so that a NaN that nobody reads stays out of the derivatives too.
    read = jnp.where(shares, jnp.expand_dims(outcome.astype(dtype), -1), 0)
    credit = read * jnp.where(shares, scale * powers[entry], 0)
    if steps:
        weights = jnp.cumsum(jnp.concatenate([jnp.ones((1,), dtype), powers[:-1]]))
        credit = credit + _window_sums(x.astype(dtype), live, reach, g, implementation) / weights[entry]
    return credit.astype(out_dtype)


def _window_sums(x: jax.Array, live: jax.Array, window: int, g: jax.Array, implementation: str | None) -> jax.Array:
    """sum_{j < window} g^j x_{t+j} over the live turns of each row; 0 at dead turns."""
    # n_step_returns takes no mask: the live turns move to the front of their row, and back.
    front = jnp.argsort(~live, axis=-1, stable=True)
    packed = jnp.take_along_axis(jnp.where(live, x, 0), front, axis=-1)
    sums = n_step_returns(
        packed,
        jnp.zeros_like(x),
        n=window,
        discount=g,
        bootstrap_value=0.0,
        time_axis=-1,
        implementation=implementation,
    )
    rank = jnp.maximum(lax.cumsum(live.astype(jnp.int32), axis=x.ndim - 1) - 1, 0)
    return jnp.where(live, jnp.take_along_axis(sums, rank, axis=-1), 0)


def trace_token_advantages(
    credit: ArrayLike,
    outcome_advantage: ArrayLike,
    turn_ids: ArrayLike,
    mask: ArrayLike,
    *,
    credit_weight: ArrayLike = 0.2,
) -> jax.Array:
    """Token advantages of TRACE: the outcome for every live token, and its turn's credit on top.

        A = A_out + credit_weight c_t on the tokens of turn t;  A = A_out on the tokens of the answer

    Args:
        credit: `[batch, turns]`, from `trace_credit`.
        outcome_advantage: `[batch]`: A_out.
        turn_ids: integers `[batch, tokens]`: the turn of each token; -1 for the answer (and for dead tokens).
        mask: `[batch, tokens]`, nonzero for tokens the policy produced.
        credit_weight: a scalar.

    Returns:
        `[batch, tokens]`, in the promoted floating dtype of `credit` and `outcome_advantage`; 0 at dead tokens.

    Raises:
        TypeError: an argument of the wrong dtype.
        ValueError: a wrong shape, and where the values can be read a turn id outside -1 to turns - 1. Under jit such an
            id gives NaN at a live token.

    Example:
        >>> import jax.numpy as jnp
        >>> from rltriton_jax.llm import trace_token_advantages
        >>> turn_ids = jnp.array([[0, 0, -1, 1, -1]])
        >>> mask = jnp.array([[1, 1, 0, 1, 1]])
        >>> print(trace_token_advantages(jnp.array([[2.5, -5.0]]), jnp.array([0.5]), turn_ids, mask))
        [[ 1.   1.   0.  -0.5  0.5]]
    """
    name = "trace_token_advantages"
    (c, outcome), out_dtype = checks.read_carriers(name, credit=credit, outcome_advantage=outcome_advantage)
    if not c.ndim:
        raise ValueError(f"{name}: credit has shape (); pass an array of shape [batch, turns]")
    checks.check_shape(name, "outcome_advantage", outcome, c.shape[:-1], "that of credit without its turns")
    ids = checks.read_ids(name, "turn_ids", turn_ids, None, "")
    if not ids.ndim or ids.shape[:-1] != c.shape[:-1]:
        raise ValueError(f"{name}: turn_ids has shape {ids.shape}, credit {c.shape}; pass turn_ids [batch, tokens]")
    live = checks.read_flags(name, "mask", mask, ids.shape, "the shape of turn_ids")
    checks.check_ids_below(name, "turn_ids", ids, c.shape[-1], "turns")
    dtype = checks.compute_dtype(out_dtype)
    weight = checks.read_scalar(name, "credit_weight", credit_weight, dtype)
    # A dead token points at no turn: it reads no credit, so that none reaches the product with the weight.
    per_token = turn_to_tokens(c.astype(dtype), jnp.where(live, ids, -1))
    total = jnp.expand_dims(outcome.astype(dtype), -1) + weight * per_token
    return jnp.where(live, total, 0).astype(out_dtype)
