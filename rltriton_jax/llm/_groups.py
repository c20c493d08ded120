"""Group-relative advantages: one score a response, compared with the other responses of its group."""

from collections.abc import Mapping
from functools import partial
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import ArrayLike

from . import _checks as checks
from ._segments import moments, over_all, over_blocks, over_ids, prefix_ids

_BASELINES = ("mean", "leave_one_out", "length_weighted", "none")
_SCALES = ("group", "batch", None)
_SINGLETONS = ("zero", "raw")


def _preset(**options: Any) -> Mapping[str, Any]:
    return MappingProxyType(options)


GROUP_PRESETS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "grpo": _preset(baseline="mean", scale="group", ddof=1, eps=1e-6, singleton="zero"),
        "trl": _preset(baseline="mean", scale="group", ddof=1, eps=1e-4, singleton="zero"),
        "dr_grpo": _preset(baseline="mean", scale=None, singleton="zero"),
        "rloo": _preset(baseline="leave_one_out", scale=None, singleton="zero"),
        "opo": _preset(baseline="length_weighted", scale=None, singleton="zero"),
        "multi_turn": _preset(baseline="leave_one_out", scale=None, singleton="raw"),
        "trace": _preset(baseline="mean", scale="group", ddof=0, eps=0.0, singleton="zero"),
    }
)


def group_advantages(
    scores: ArrayLike,
    group_ids: ArrayLike | None = None,
    *,
    group_size: int | None = None,
    baseline: str = "mean",
    scale: str | None = "group",
    ddof: int = 1,
    eps: ArrayLike = 1e-6,
    singleton: str = "zero",
    lengths: ArrayLike | None = None,
    mask: ArrayLike | None = None,
) -> jax.Array:
    """Advantage of each response over the other responses of its group.

    With s the scores and n the members of a group:

        baseline="mean"             D = s - mean(s)
        baseline="leave_one_out"    D = s - mean of the others = n / (n - 1) (s - mean(s))
        baseline="length_weighted"  D = s - sum(length s) / sum(length)
        baseline="none"             D = s
        scale="group"               A = D / (std of the group's scores + eps)
        scale="batch"               A = D / (std of all scores + eps)
        scale=None                  A = D

    A group whose scores are all equal gives exactly 0 (its deviations and its std are taken from its least member,
    so rounding cannot reach them), unless neither baseline nor scale is asked for: A = s. Rows of `mask` 0 or id -1 give 0
    and count nowhere, whatever they hold. `GROUP_PRESETS` holds the conventions of the papers and libraries: `grpo`,
    `trl` (eps 1e-4), `dr_grpo`, `rloo`, `opo` (needs `lengths`), `multi_turn` and `trace`.

    Args:
        scores: `[rows]`, one score a response. Integers are promoted.
        group_ids: integers `[rows]`: rows of equal id form a group; any ids from 0 on, in any order; -1 for padding.
        group_size: instead of `group_ids`: each `group_size` rows that follow each other form a group.
        baseline: what is subtracted.
        scale: what is divided by.
        ddof: 1 for the sample std, 0 for the population std.
        eps: added to the std.
        singleton: what the only member of a group gets, unless neither baseline nor scale is asked for: 0 ("zero") or
            its score as it is ("raw").
        lengths: `[rows]`, weights of "length_weighted": the response's number of trained tokens. A group of total
            length 0 gives 0.
        mask: `[rows]`, nonzero for rows that are real; None for all.

    Returns:
        Advantages `[rows]`, in the floating dtype of `scores` (computed in at least float32).

    Raises:
        TypeError: an argument of the wrong dtype.
        ValueError: a wrong shape or choice, both or neither of `group_ids` and `group_size`, and where the values can
            be read (outside jit): an id below -1, a negative or non-finite `eps`, or NaN or inf in a live row. Under
            jit a row of non-finite score gives 0 and counts nowhere.

    Example:
        >>> import jax.numpy as jnp
        >>> from rltriton_jax.llm import GROUP_PRESETS, group_advantages
        >>> scores = jnp.array([1.0, 0.0, 0.5, 0.3, 0.3])
        >>> ids = jnp.array([5, 5, 5, 2, 2])
        >>> print(group_advantages(scores, ids, **GROUP_PRESETS["rloo"]))
        [ 0.75 -0.75  0.    0.    0.  ]

    GRPO: Shao et al. 2024, arXiv:2402.03300. Dr.GRPO: Liu et al. 2025, arXiv:2503.20783. RLOO: Ahmadian et al. 2024,
    arXiv:2402.14740. OPO: arXiv:2505.23585.
    """
    name = "group_advantages"
    x = checks.read_floats(name, "scores", scores)
    checks.check_rank(name, "scores", x, ["rows"])
    live = checks.read_flags(name, "mask", mask, x.shape, "one entry for each score")
    size = None
    if (group_ids is None) == (group_size is None):
        given = "neither" if group_ids is None else "both"
        raise ValueError(f"{name}: {given} of group_ids and group_size given; pass one of them")
    if group_ids is not None:
        ids = checks.read_ids(name, "group_ids", group_ids, x.shape, "one id for each score")
        live = live & (ids >= 0)
        (ids,), _ = prefix_ids([ids], live)
    else:
        ids, size = None, checks.read_static_int(name, "group_size", group_size, least=1)
        if x.shape[0] % size:
            raise ValueError(
                f"{name}: group_size is {size}, which does not divide the {x.shape[0]} rows of scores; "
                "pass whole groups, or group_ids"
            )
    return against_group(
        name,
        "scores",
        x,
        live,
        ids,
        size=size,
        baseline=baseline,
        scale=scale,
        ddof=ddof,
        eps=eps,
        singleton=singleton,
        lengths=lengths,
    )


def step_group_advantages(
    scores: ArrayLike,
    state_ids: ArrayLike,
    group_ids: ArrayLike,
    *,
    baseline: str = "mean",
    scale: str | None = "group",
    ddof: int = 1,
    eps: ArrayLike = 1e-6,
    singleton: str = "zero",
) -> jax.Array:
    """Advantage of each turn over all turns taken from the same state in the same group of rollouts.

    `group_advantages` over the groups (group, state): every visit counts, also two of one rollout. GiGPO adds it to
    the advantage of the whole rollout: A = A_episode + omega A_step, with the discounted returns as scores.

    Args:
        scores: `[rollouts, turns]`, usually `discounted_returns` of the turn rewards.
        state_ids: integers `[rollouts, turns]`, equal where the state is the same; -1 for turns that do not exist.
        group_ids: integers `[rollouts]`: rollouts of the same task; -1 for padding.
        baseline, scale, ddof, eps, singleton: as in `group_advantages` (no "length_weighted"). `scale=None` is GiGPO's
            form without std.

    Returns:
        Advantages `[rollouts, turns]`, in the floating dtype of `scores`; 0 for turns that do not exist.

    Raises:
        TypeError, ValueError: as `group_advantages`.

    Example:
        >>> import jax.numpy as jnp
        >>> from rltriton_jax.llm import step_group_advantages
        >>> returns = jnp.array([[0.9, 1.0], [0.0, 0.0]])
        >>> print(step_group_advantages(returns, jnp.array([[0, 1], [0, 2]]), jnp.array([4, 4]), scale=None))
        [[ 0.45  0.  ]
         [-0.45  0.  ]]

    GiGPO: arXiv:2505.10978.
    """
    name = "step_group_advantages"
    x = checks.read_floats(name, "scores", scores)
    checks.check_rank(name, "scores", x, ["rollouts", "turns"])
    states = checks.read_ids(name, "state_ids", state_ids, x.shape, "the shape of scores")
    groups = per_turn(checks.read_ids(name, "group_ids", group_ids, x.shape[:1], "one id for each rollout"), x.shape)
    live = (states >= 0) & (groups >= 0)
    (_, ids), _ = prefix_ids([groups, states], live)
    checks.read_choice(name, "baseline", baseline, [b for b in _BASELINES if b != "length_weighted"])
    return against_group(
        name, "scores", x, live, ids, baseline=baseline, scale=scale, ddof=ddof, eps=eps, singleton=singleton
    )


def per_turn(x: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """`[rollouts]` to `[rollouts, turns]`."""
    return lax.broadcast_in_dim(x, shape, (0,))


def against_group(
    name: str,
    argument: str,
    x: jax.Array,
    live: jax.Array,
    ids: jax.Array | None,
    *,
    baseline: str,
    scale: str | None,
    singleton: str,
    size: int | None = None,
    ddof: int = 1,
    eps: ArrayLike = 0.0,
    lengths: ArrayLike | None = None,
) -> jax.Array:
    """What every group-relative function does once its groups are known: `ids` from `prefix_ids`, or blocks of `size`.

    Scores `x` and `live` may have any shape, which the result has too; errors name them `argument`.
    """
    checks.read_choice(name, "baseline", baseline, _BASELINES)
    checks.read_choice(name, "scale", scale, _SCALES)
    checks.read_choice(name, "singleton", singleton, _SINGLETONS)
    ddof = checks.read_ddof(name, ddof)
    checks.check_finite(name, argument, x, live)
    weights = _read_lengths(name, baseline, lengths, x, live)
    margin = checks.read_scalar(name, "eps", eps, checks.compute_dtype(x.dtype), least=0)
    return _advantages(
        x, live, ids, weights, margin, size=size, baseline=baseline, scale=scale, ddof=ddof, singleton=singleton
    )


@partial(jax.jit, static_argnames=("size", "baseline", "scale", "ddof", "singleton"))
def _advantages(
    x: jax.Array,
    live: jax.Array,
    ids: jax.Array | None,
    weights: jax.Array,
    margin: jax.Array,
    *,
    size: int,
    baseline: str,
    scale: str | None,
    ddof: int,
    singleton: str,
) -> jax.Array:
    over = over_blocks(size) if ids is None else over_ids(ids)
    live = (live & jnp.isfinite(x)).reshape(-1)
    scores = jnp.where(live, x.reshape(-1), 0).astype(margin.dtype)
    group = moments(scores, live, over)
    if baseline == "none":
        # Equal members, which no baseline cancels here, are told by max == min.
        out = jnp.where(group.flat, 0, scores * group.per_unit)
    elif baseline == "mean":
        out = group.deviation
    elif baseline == "leave_one_out":
        out = group.deviation * (group.members / jnp.maximum(group.members - 1, 1))
    else:
        weights = jnp.where(live, weights.reshape(-1), 0).astype(scores.dtype)
        total = over.sum(weights)
        # Counted from a member that weighs: one far off that does not would cost the others their digits.
        low = over.min(jnp.where(weights > 0, lax.stop_gradient(scores), jnp.inf))
        above_low = scores * group.per_unit - jnp.where(total > 0, low, 0) * group.per_unit
        weighted = over.sum(weights * above_low) / jnp.where(total > 0, total, 1)
        out = jnp.where(total > 0, above_low - weighted, 0)
    if scale is None:
        out = scores if baseline == "none" else out * group.unit
    else:
        compared = group if scale == "group" else moments(scores, live, over_all())
        # Equal members have no std to divide by: they are told by max == min, since rounding may leave a std above 0.
        divisor = jnp.where(compared.flat, 1, compared.std(ddof) + margin * compared.per_unit)
        out = jnp.where(compared.flat, 0, out / divisor) * (group.unit * compared.per_unit)
    if baseline != "none" or scale is not None:
        alone = scores if singleton == "raw" else jnp.zeros_like(scores)
        out = jnp.where(group.members == 1, alone, out)
    return jnp.where(live, out, 0).astype(x.dtype).reshape(x.shape)


def _read_lengths(name: str, baseline: str, lengths: ArrayLike | None, x: jax.Array, live: jax.Array) -> jax.Array:
    if baseline != "length_weighted":
        if lengths is not None:
            raise ValueError(f'{name}: lengths given with baseline={baseline!r}; pass them with "length_weighted" only')
        return x
    if lengths is None:
        raise ValueError(f'{name}: baseline="length_weighted" needs lengths; pass an array of shape {x.shape}')
    weights = checks.read_floats(name, "lengths", lengths)
    checks.check_shape(name, "lengths", weights, x.shape, "one length for each score")
    checks.check_finite(name, "lengths", weights, live)
    if weights.size and checks.is_concrete(weights, live) and bool(jnp.any(live & (weights < 0))):
        raise ValueError(f"{name}: lengths holds negative values; pass numbers of tokens")
    return weights
