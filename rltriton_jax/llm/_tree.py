"""RTMC: rollouts of a task seen as one tree of states and actions, with Monte Carlo values at its nodes."""

from collections.abc import Hashable, Iterable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import ArrayLike

from . import _checks as checks
from ._groups import against_group, per_turn
from ._rows import row_returns
from ._segments import Reductions, over_ids, prefix_ids


def rollout_tree_advantages(
    rewards: ArrayLike,
    state_ids: ArrayLike,
    action_ids: ArrayLike,
    group_ids: ArrayLike,
    *,
    discount: ArrayLike = 0.99,
    prior_count: ArrayLike = 2,
    scale: str | None = None,
    eps: ArrayLike = 0.0,
    implementation: str | None = None,
) -> jax.Array:
    """Advantage of each action over its state, both valued by all rollouts of the task that came through them.

        R_t = r_t + discount R_{t+1} over the turns of a rollout
        Q(s, a) = mean of R at the first visit of (s, a) in each rollout;  N(s, a) = the number of these visits
        V(s) = sum_a N(s, a) Q(s, a) / N(s),  N(s) = sum_a N(s, a)
        V'(s) = (N V + n0 V0) / (N + n0),  V0 = mean over the group's rollouts of their summed rewards
        A = Q(s, a) - V'(s), with scale="group" divided by (population std of the group's A + eps), not centred

    States are those of one group: the same id in two groups is two states. A pair repeated within a rollout counts
    once, and every visit receives its A.

    Args:
        rewards: `[rollouts, turns]`.
        state_ids: integers `[rollouts, turns]` (see `state_action_ids`); -1 for turns that do not exist, which are
            skipped.
        action_ids: integers `[rollouts, turns]`, likewise.
        group_ids: integers `[rollouts]`: rollouts of the same task; -1 for padding.
        discount: scalar, or `[rollouts, turns]`.
        prior_count: n0, the weight of V0 in rollouts; 0 for no prior.
        scale: None or "group". A group whose advantages are all equal then gives 0.
        eps: added to the std.
        implementation: of `discounted_returns`.

    Returns:
        A `[rollouts, turns]`, in the floating dtype of `rewards`; 0 for turns that do not exist.

    Raises:
        TypeError: an argument of the wrong dtype.
        ValueError: a wrong shape or choice, and where the values can be read a negative or non-finite `prior_count` or
            `eps`, an id below -1, or NaN or inf in a live reward. Under jit a turn of non-finite return counts nowhere
            and gives 0.

    Example:
        >>> import jax.numpy as jnp
        >>> from rltriton_jax.llm import rollout_tree_advantages, state_action_ids
        >>> states, actions = state_action_ids([["s0"], ["s0"]]), state_action_ids([["left"], ["right"]])
        >>> print(rollout_tree_advantages(jnp.array([[1.0], [0.0]]), states, actions, jnp.array([0, 0])))
        [[ 0.5]
         [-0.5]]

    The advantage of RTMC: arXiv:2604.11037.
    """
    name = "rollout_tree_advantages"
    x = checks.read_floats(name, "rewards", rewards)
    checks.check_rank(name, "rewards", x, ["rollouts", "turns"])
    states = checks.read_ids(name, "state_ids", state_ids, x.shape, "the shape of rewards")
    actions = checks.read_ids(name, "action_ids", action_ids, x.shape, "the shape of rewards")
    groups = per_turn(checks.read_ids(name, "group_ids", group_ids, x.shape[:1], "one id for each rollout"), x.shape)
    checks.read_choice(name, "scale", scale, ("group", None))
    live = (states >= 0) & (actions >= 0) & (groups >= 0)
    checks.check_finite(name, "rewards", x, live)
    dtype = checks.compute_dtype(x.dtype)
    prior = checks.read_scalar(name, "prior_count", prior_count, dtype, least=0)
    wide = jnp.where(live, x, 0).astype(dtype)
    returns = row_returns(name, "rewards", wide, live, discount, implementation)

    out, group_of = _q_minus_v(wide, returns, live, states, actions, groups, prior)
    if scale == "group":
        out = against_group(
            name, "advantages", out, live, group_of, baseline="none", scale=scale, ddof=0, eps=eps, singleton="zero"
        )
    return out.astype(x.dtype)


@jax.jit
def _q_minus_v(
    rewards: jax.Array,
    returns: jax.Array,
    live: jax.Array,
    states: jax.Array,
    actions: jax.Array,
    groups: jax.Array,
    prior: jax.Array,
) -> tuple[jax.Array, jax.Array]:
    """The unscaled advantages, and the ids of the groups as `prefix_ids` gives them."""
    live = live & jnp.isfinite(returns)
    rollout = lax.broadcasted_iota(jnp.int32, live.shape, 0)
    (group_of, state_of, pair_of, _), first = prefix_ids([groups, states, actions, rollout], live)
    state, pair = over_ids(state_of), over_ids(pair_of)
    group = over_ids(group_of)
    visits = first.astype(returns.dtype)
    returns = jnp.where(live, returns, 0).reshape(-1)
    # Counted from the group's least return, equal returns are exactly 0; A does not depend on where one counts from.
    low = group.min(jnp.where(first, lax.stop_gradient(returns), jnp.inf))
    above_low = jnp.where(first, returns - low, 0)
    q = pair.sum(above_low) / jnp.maximum(pair.sum(visits), 1)
    count = state.sum(visits)
    v = state.sum(above_low) / jnp.maximum(count, 1)
    weight = count + prior
    # Q - V' as a mean of Q - V and Q - V0, in which equal values cancel exactly.
    out = (count * (q - v) + prior * (q - _mean_reward(rewards, live, group, low))) / jnp.where(weight > 0, weight, 1)
    return jnp.where(live, out.reshape(live.shape), 0), group_of


def _mean_reward(rewards: jax.Array, live: jax.Array, group: Reductions, low: jax.Array) -> jax.Array:
    """Mean over a group's rollouts of their summed rewards above `low`, given to each row of the group."""
    counted = live & per_turn(jnp.isfinite(jnp.sum(rewards, axis=1)), rewards.shape)
    head = counted & (jnp.cumsum(counted.astype(jnp.int32), axis=1, dtype=jnp.int32) == 1)
    summed = per_turn(jnp.sum(jnp.where(counted, rewards, 0), axis=1), rewards.shape).reshape(-1)
    head = head.reshape(-1)
    total = group.sum(jnp.where(head, summed - low, 0))
    return total / jnp.maximum(group.sum(head.astype(rewards.dtype)), 1)


def state_action_ids(signatures: Iterable[Sequence[Hashable]], *, turns: int | None = None) -> np.ndarray:
    """Numbers the states (or the actions) of rollouts, on the host: equal signatures get equal ids.

    Args:
        signatures: for each rollout the sequence of its turns' signatures, any hashables (strings, tuples, hashes of
            observations); None for a turn that does not exist. Rollouts may have different numbers of turns.
        turns: the width of the result, to keep shapes static under jit; None for the longest rollout.

    Returns:
        NumPy int32 `[rollouts, turns]`: 0, 1, ... in order of first appearance; -1 for None and behind a rollout's end.

    Raises:
        TypeError: a rollout that is no sequence, a signature that is not hashable.
        ValueError: a rollout longer than `turns`.

    Example:
        >>> from rltriton_jax.llm import state_action_ids
        >>> state_action_ids([["root", ("a", 1)], ["root", None, "leaf"]]).tolist()
        [[0, 1, -1], [0, -1, 2]]
    """
    name = "state_action_ids"
    rows = []
    for index, row in enumerate(signatures):
        if isinstance(row, str | bytes) or not isinstance(row, Sequence | np.ndarray):
            raise TypeError(
                f"{name}: signatures[{index}] is {type(row).__name__}; pass one sequence of signatures a rollout"
            )
        rows.append(row)
    longest = max(map(len, rows), default=0)
    width = longest if turns is None else checks.read_static_int(name, "turns", turns, least=0)
    if longest > width:
        raise ValueError(f"{name}: turns is {width}, but a rollout has {longest} turns; pass at least {longest}")
    known: dict[Hashable, int] = {}
    ids = np.full((len(rows), width), -1, np.int32)
    for index, row in enumerate(rows):
        for turn, signature in enumerate(row):
            if signature is None:
                continue
            try:
                ids[index, turn] = known.setdefault(signature, len(known))
            except TypeError as error:
                raise TypeError(
                    f"{name}: signatures[{index}][{turn}] is {type(signature).__name__}, which is not hashable; "
                    "pass strings, numbers or tuples"
                ) from error
    return ids
