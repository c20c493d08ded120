"""Segment work with static shapes: ids by sorting, reductions from rows to rows, and two-pass moments."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import ArrayLike

from ._checks import read_flags, read_ids


class Reductions(NamedTuple):
    """Each takes one value a row and gives every row the result of its own group (of all rows, of its block)."""

    sum: Callable[[jax.Array], jax.Array]
    max: Callable[[jax.Array], jax.Array]
    min: Callable[[jax.Array], jax.Array]


def over_all() -> Reductions:
    return Reductions(jnp.sum, lambda x: jnp.max(x, initial=-jnp.inf), lambda x: jnp.min(x, initial=jnp.inf))


def over_blocks(size: int) -> Reductions:
    """Groups of `size` rows that follow each other."""

    def spread(reduce: Callable[..., jax.Array]) -> Callable[[jax.Array], jax.Array]:
        def rows(x: jax.Array) -> jax.Array:
            blocks = x.reshape(-1, size)
            return jnp.broadcast_to(reduce(blocks, axis=1, keepdims=True), blocks.shape).reshape(x.shape)

        return rows

    return Reductions(spread(jnp.sum), spread(jnp.max), spread(jnp.min))


def over_ids(ids: jax.Array) -> Reductions:
    """Groups by ids from `prefix_ids`: 0 to rows - 1, or `rows` for a row of no group (it reads 0)."""
    rows = ids.shape[0]

    def spread(reduce: Callable[..., jax.Array]) -> Callable[[jax.Array], jax.Array]:
        return lambda x: reduce(x, ids, num_segments=rows).at[ids].get(mode="fill", fill_value=0)

    return Reductions(spread(jax.ops.segment_sum), spread(jax.ops.segment_max), spread(jax.ops.segment_min))


@jax.jit
def prefix_ids(keys: Sequence[jax.Array], live: jax.Array) -> tuple[list[jax.Array], jax.Array]:
    """Ids 0, 1, ... for every prefix of `keys` (rows with equal keys share an id), from one sort.

    `keys` and `live` are of one shape and are raveled to rows. Returns the ids of each prefix, int32 `[rows]` with
    `rows` at dead rows, and a bool `[rows]` that marks the earliest live row of each set of rows in which all keys
    agree.
    """
    rows = live.size
    row = lax.iota(jnp.int32, rows)
    raveled = (x.reshape(-1) for x in (~live, *keys))
    dead, *ordered, order = lax.sort((*raveled, row), num_keys=1 + len(keys), is_stable=True)
    new = jnp.zeros((rows,), bool)
    ids = []
    for key in ordered:
        new = new | jnp.concatenate([jnp.zeros((min(rows, 1),), bool), key[1:] != key[:-1]])
        ranks = jnp.where(dead, rows, jnp.cumsum(new.astype(jnp.int32), dtype=jnp.int32))
        ids.append(jnp.zeros((rows,), jnp.int32).at[order].set(ranks, unique_indices=True))
    first = (new | (row == 0)) & ~dead
    return ids, jnp.zeros((rows,), bool).at[order].set(first, unique_indices=True)


class Moments(NamedTuple):
    """What a row knows of its group: number of live members, whether they are all equal, mean and squared deviations.

    `deviation` is the row's x - mean in units of `unit`, 0 at dead rows, and `m2` the sum of its squares.
    `per_unit` is 1 / unit; both are powers of two, so that to change units costs no digits.
    """

    members: jax.Array
    flat: jax.Array
    mean: jax.Array
    unit: jax.Array
    per_unit: jax.Array
    deviation: jax.Array
    m2: jax.Array

    def variance(self, ddof: int) -> jax.Array:
        """In units squared; 0 for a flat group."""
        return jnp.where(self.flat, 0, self.m2 / jnp.maximum(self.members - ddof, 1))

    def std(self, ddof: int) -> jax.Array:
        """In units; 0 for a flat group."""
        return jnp.where(self.flat, 0, jnp.sqrt(jnp.where(self.flat, 1, self.variance(ddof))))


def moments(x: jax.Array, live: jax.Array, over: Reductions, *, least: ArrayLike = 0.0) -> Moments:
    """Two passes over live rows, counted from the least member: equal members deviate by exactly 0.

    The unit is about the group's spread (max - min), or `least` if that is more: no sum or square overflows or vanishes.
    """
    count = over.sum(live.astype(jnp.int32)).astype(x.dtype)
    fixed = lax.stop_gradient(x)
    high = over.max(jnp.where(live, fixed, -jnp.inf))
    low = over.min(jnp.where(live, fixed, jnp.inf))
    flat = ~(high > low)
    low = jnp.where(count > 0, low, 0)
    limits = jnp.finfo(x.dtype)
    # Half the spread of finite numbers is finite.
    size = jnp.maximum(jnp.where(flat, 0.5, high / 2 - low / 2), jnp.maximum(least, limits.tiny))
    exponent = jnp.clip(jnp.frexp(size)[1], limits.minexp, -limits.minexp)
    one = jnp.ones_like(size)
    unit, per_unit = jnp.ldexp(one, exponent), jnp.ldexp(one, -exponent)
    low = low * per_unit
    above_low = jnp.where(live, x * per_unit - low, 0)
    mean_above = over.sum(above_low) / jnp.maximum(count, 1)
    deviation = jnp.where(live, above_low - mean_above, 0)
    return Moments(count, flat, (low + mean_above) * unit, unit, per_unit, deviation, over.sum(jnp.square(deviation)))


def segment_ends(segment_ids: ArrayLike, mask: ArrayLike | None = None) -> jax.Array:
    """Marks the last live token of each sequence in a packed row: the `terminated` of the core functions.

    A token is an end when the next live token of its row has another segment id, or when there is none. Only live
    tokens are marked, so an end is not lost when the core functions skip the masked tokens around a border.

    Args:
        segment_ids: integers `[..., tokens]`, -1 for padding.
        mask: `[..., tokens]`, nonzero for tokens the policy produced; None for all but padding.

    Returns:
        bool `[..., tokens]`.

    Raises:
        TypeError: `segment_ids` is not of integers.
        ValueError: an id below -1, or a `mask` of another shape.

    Example:
        >>> import jax.numpy as jnp
        >>> from rltriton_jax.llm import segment_ends
        >>> segment_ends(jnp.array([7, 7, 7, 9, 9, -1]), jnp.array([1, 1, 0, 0, 1, 0])).astype(int).tolist()
        [0, 1, 0, 0, 1, 0]
    """
    return _last_live(*_read_segments("segment_ends", segment_ids, mask))


def segment_starts(segment_ids: ArrayLike, mask: ArrayLike | None = None) -> jax.Array:
    """Marks the first live token of each sequence in a packed row: the `episode_starts` of the core functions.

    A token is a start when the live token before it in its row has another segment id, or when there is none. One
    entry more than tokens, the last one true: what follows the row is a new sequence. Only live tokens are marked, so
    a start is not lost when the core functions skip the masked tokens around a border.

    Args:
        segment_ids: integers `[..., tokens]`, -1 for padding.
        mask: `[..., tokens]`, nonzero for tokens the policy produced; None for all but padding.

    Returns:
        bool `[..., tokens + 1]`.

    Raises:
        TypeError: `segment_ids` is not of integers.
        ValueError: an id below -1, or a `mask` of another shape.

    Example:
        >>> import jax.numpy as jnp
        >>> from rltriton_jax.llm import segment_starts
        >>> segment_starts(jnp.array([7, 7, 7, 9, 9, -1]), jnp.array([1, 1, 0, 0, 1, 0])).astype(int).tolist()
        [1, 0, 0, 0, 1, 0, 1]
    """
    ids, live = _read_segments("segment_starts", segment_ids, mask)
    starts = jnp.flip(_last_live(jnp.flip(ids, -1), jnp.flip(live, -1)), -1)
    return jnp.concatenate([starts, jnp.ones((*ids.shape[:-1], 1), bool)], axis=-1)


def _read_segments(name: str, segment_ids: ArrayLike, mask: ArrayLike | None) -> tuple[jax.Array, jax.Array]:
    ids = read_ids(name, "segment_ids", segment_ids, None, "")
    if not ids.ndim:
        raise ValueError(f"{name}: segment_ids has shape (); pass an array of shape [..., tokens]")
    return ids, read_flags(name, "mask", mask, ids.shape, "the shape of segment_ids") & (ids >= 0)


def _last_live(ids: jax.Array, live: jax.Array) -> jax.Array:
    """Live entries behind which the next live entry has another id, or is missing."""
    tokens = ids.shape[-1]
    if not tokens:
        return live
    position = lax.broadcasted_iota(jnp.int32, ids.shape, ids.ndim - 1)
    at_or_after = lax.cummin(jnp.where(live, position, tokens), axis=ids.ndim - 1, reverse=True)
    none_left = jnp.full((*ids.shape[:-1], 1), tokens, jnp.int32)
    after = jnp.concatenate([at_or_after[..., 1:], none_left], axis=-1)
    next_ids = jnp.take_along_axis(ids, jnp.minimum(after, tokens - 1), axis=-1)
    return live & ((after == tokens) | (next_ids != ids))
