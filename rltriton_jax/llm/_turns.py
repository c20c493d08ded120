"""Turn-level advantages of multi-turn REINFORCE: leave-one-out over the rollouts that share a task, turn and agent."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import ArrayLike

from . import _checks as checks
from ._groups import GROUP_PRESETS, against_group, per_turn
from ._rows import row_returns
from ._segments import prefix_ids

AGENT_WEIGHTS = (1.0, 0.3, 0.5)


def multi_turn_advantages(
    turn_rewards: ArrayLike,
    group_ids: ArrayLike,
    turn_mask: ArrayLike | None = None,
    *,
    discount: ArrayLike = 1.0,
    agent_ids: ArrayLike | None = None,
    agent_weights: ArrayLike | Sequence[float] = AGENT_WEIGHTS,
    implementation: str | None = None,
) -> jax.Array:
    """Leave-one-out advantage of each turn's return over the same turn of the other rollouts of its task.

        G_t = r_t + discount G_{t+1} over the turns of a rollout
        A = weight n / (n - 1) (G - mean(G)) over the group (agent, task, turn); a group of one: A = weight G

    There is no division by a std (`GROUP_PRESETS["multi_turn"]`). A masked turn gives 0 and counts in no group, but
    its reward still feeds the returns of earlier turns: turns that do not exist carry reward 0.

    Args:
        turn_rewards: `[batch, turns]`. An agent that acts once per row has its reward in one turn.
        group_ids: integers `[batch]`: rows of the same task; -1 for padding.
        turn_mask: `[batch, turns]`, nonzero for turns the policy is trained on; None for all.
        discount: scalar, or `[batch, turns]`.
        agent_ids: integers `[batch]` or `[batch, turns]`: who acted (0 policy, 1 skill selection, 2 skill summary in
            the original); -1 for padding; None for 0 everywhere.
        agent_weights: `[agents]`, the weight of each agent's advantages.
        implementation: of `discounted_returns`.

    Returns:
        Advantages `[batch, turns]`, in the floating dtype of `turn_rewards`; 0 for masked turns.

    Raises:
        TypeError: an argument of the wrong dtype.
        ValueError: a wrong shape, and where the values can be read an id below -1, an agent without a weight, or NaN
            or inf in a reward. Under jit a turn of non-finite return gives 0 and counts nowhere, and an agent without
            a weight gives NaN.

    Example:
        >>> import jax.numpy as jnp
        >>> from rltriton_jax.llm import multi_turn_advantages
        >>> rewards = jnp.array([[0.0, 1.0], [0.5, 0.0], [0.0, 0.0]])
        >>> print(multi_turn_advantages(rewards, jnp.array([0, 0, 0]), jnp.array([[1, 1], [1, 1], [1, 0]])))
        [[ 0.75  1.  ]
         [ 0.   -1.  ]
         [-0.75  0.  ]]

    Multi-turn REINFORCE with per-agent advantages.
    """
    name = "multi_turn_advantages"
    x = checks.read_floats(name, "turn_rewards", turn_rewards)
    checks.check_rank(name, "turn_rewards", x, ["batch", "turns"])
    tasks = per_turn(checks.read_ids(name, "group_ids", group_ids, x.shape[:1], "one id for each row"), x.shape)
    real = tasks >= 0
    checks.check_finite(name, "turn_rewards", x, real)
    live = real & checks.read_flags(name, "turn_mask", turn_mask, x.shape, "the shape of turn_rewards")
    wide = jnp.where(real, x, 0).astype(checks.compute_dtype(x.dtype))
    weights = checks.read_floats(name, "agent_weights", agent_weights).astype(wide.dtype)
    checks.check_rank(name, "agent_weights", weights, ["agents"])
    agents = _read_agents(name, agent_ids, x.shape, weights.shape[0])
    live = live & (agents >= 0)
    returns = row_returns(name, "turn_rewards", wide, real, discount, implementation)
    turn = lax.broadcasted_iota(jnp.int32, x.shape, 1)
    (*_, ids), _ = prefix_ids([agents, tasks, turn], live)
    out = against_group(name, "discounted returns", returns, live, ids, **GROUP_PRESETS["multi_turn"])
    weight = weights.at[jnp.maximum(agents, 0)].get(mode="fill", fill_value=jnp.nan)
    return (out * jnp.where(live, weight, 0)).astype(x.dtype)


def _read_agents(name: str, agent_ids: ArrayLike | None, shape: tuple[int, ...], known: int) -> jax.Array:
    if agent_ids is None:
        return jnp.zeros(shape, jnp.int32)
    agents = checks.read_ids(name, "agent_ids", agent_ids, None, "")
    if agents.shape not in (shape, shape[:1]):
        raise ValueError(f"{name}: agent_ids has shape {agents.shape}; pass shape {shape[:1]} or {shape}")
    checks.check_ids_below(name, "agent_ids", agents, known, "agent_weights")
    return agents if agents.ndim == 2 else per_turn(agents, shape)
