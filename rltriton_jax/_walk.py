"""What a scan computes: a walk over time, the affine step it takes, and what it reads out on the way."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp

from .kernels import recurrences

Flag = bool | jax.Array  # a Python bool is decided at trace time

# an output per step, per step and edge, summed over time, at the edge
STEP, LONG, SUM, EDGE = "step", "long", "sum", "edge"


@dataclasses.dataclass(frozen=True)
class Beside:
    """Which neighbours of a step exist: `near` was walked before it, `far` comes after. `here`: not past the end."""

    near: Any = True
    far: Any = True
    here: bool = True


def select(condition: Flag, x: Any, y: Any) -> Any:
    """`where`, decided at trace time when the condition is a Python bool."""
    if isinstance(condition, bool):
        return x if condition else y
    return jnp.where(condition, x, y)


def either(*flags: Flag) -> Flag:
    """The flags or'ed; False entries vanish, so that a walk without flags computes nothing."""
    if any(flag is True for flag in flags):
        return True
    out: Flag = False
    for flag in flags:
        if flag is not False:
            out = flag if out is False else out | flag
    return out


def both(x: Flag, y: Flag) -> Flag:
    """x and y, decided at trace time where one is a Python bool."""
    if isinstance(x, bool) or isinstance(y, bool):
        return (y if x else False) if isinstance(x, bool) else (x if y else False)
    return x & y


def negate(flag: Flag) -> Flag:
    return (not flag) if isinstance(flag, bool) else ~flag


@dataclasses.dataclass(frozen=True)
class Walk:
    """The static half of a scan. Its operands are arrays of equal rank with axes of full size or 1.

    An operand has one row a step, or T + 1 rows (`long`: the last row stands past the end), or one row for all time
    (`fixed`). `edges` names the fixed operand that stands past the end of a series. `over` is the mesh axis whose shards
    hold consecutive blocks of time: the first that is walked starts from `init`, each other where the one before ended.
    Of a pair (row, edge) in `sent`, the edge is, where shards are `joined`, the row of the shard that was walked before.
    `told` names what else is handed out behind the outputs: edges as they came from there, the state that came,
    `incoming`, or `back_EDGE`: the output EDGE of the shard that was walked before, 0 on the first.
    Only the outputs that are `shown` are handed out; None: all.
    Subclasses define `step`, `read` and `kinds`.
    """

    names: tuple[str, ...]
    reverse: bool
    flags: tuple[str, ...] = ()
    long: tuple[str, ...] = ()
    fixed: tuple[str, ...] = ()
    edges: tuple[tuple[str, str], ...] = ()
    init: str | None = None
    mask: str | None = None  # None, or "mask"
    mask_mode: str = "skip"
    saved: tuple[str, ...] = ()
    over: str | None = None
    sent: tuple[tuple[str, str], ...] = ()
    told: tuple[str, ...] = ()
    shown: tuple[int, ...] | None = None
    stepped: str | None = None
    function: str = dataclasses.field(default="rltriton_jax", compare=False)  # the public one, named in errors

    mirrored = False  # a mirrored walk (an adjoint) has its edge past its own end, and visits it

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kind of each output."""
        raise NotImplementedError

    def step(self, now, near, far, beside):
        """(a, b) of x = a * carry + b at a live step."""
        raise NotImplementedError

    def read(self, x, carry, now, near, far, beside):
        """The outputs at a live step."""
        raise NotImplementedError

    @property
    def bare(self) -> bool:
        """The coefficient is an operand: where it is 0, no formula drops what stands behind."""
        return False

    @property
    def skips(self) -> bool:
        return self.mask is not None and self.mask_mode == "skip"

    def _live(self, now):
        """The rows of a step, 0 where it is masked: nothing of it may reach a product."""
        if self.mask is None:
            return now
        kept = (*self.fixed, *self.flags)
        return Rows(lambda name: getattr(now, name) if name in kept else select(now.mask, getattr(now, name), 0.0))

    def guarded(self, rows: Rows, hidden: Callable[[], Flag]) -> Rows:
        """`rows`, 0 where they are hidden: what is not read must not reach a product."""
        kept = (*self.fixed, *self.flags)

        def row(name: str) -> Any:
            return getattr(rows, name) if name in kept else select(hidden(), 0.0, getattr(rows, name))

        return Rows(row)

    def coefficients(self, now, near, far, beside):
        """`step`, with the masked steps passed over (skip) or cut (reset)."""
        if self.mask is None or not beside.here:
            return self.step(now, near, far, beside)
        a, b = self.step(self._live(now), near, far, beside)
        return select(now.mask, a, 1.0 if self.skips else 0.0), select(now.mask, b, 0.0)

    def outputs(self, x, carry, now, near, far, beside):
        """`read`, 0 at masked steps; then what the adjoint asked to save: the state, or a next live step's operand."""
        if self.mask is None or not beside.here:
            outs = tuple(self.read(x, carry, now, near, far, beside))
        else:
            outs = tuple(select(now.mask, out, 0.0) for out in self.read(x, carry, self._live(now), near, far, beside))
        extra = []
        for name in self.saved:
            source = name.removeprefix("ahead_")
            value = x if name == "x" else beside.near if source == "beside" else getattr(near, source)
            extra.append(jnp.where(value, 1.0, 0.0) if source in (*self.flags, "beside") else value)
        return self.of_shown((*outs, *extra))

    def of_shown(self, outs: Sequence[Any]) -> tuple[Any, ...]:
        """Of one thing for each output, those whose output is handed out."""
        return tuple(outs) if self.shown is None else tuple(outs[i] for i in self.shown if i < len(outs))

    def saving(self, names: tuple[str, ...], told: tuple[str, ...] = ()) -> Walk:
        """This walk, which also hands out the state (`x`) and what the next live step holds (`ahead_NAME`)."""
        return dataclasses.replace(self, saved=names, told=told)

    def to_run(self) -> Walk:
        """This walk without what only its derivatives need."""
        return self

    def entered(self) -> Walk:
        """This walk, its state at the start given by an operand of its own, `entry`; behind the first step by `stepped`.

        The latter only where that step reads what another shard sends: the map of this shard goes without it.
        """
        stepped = "stepped" if self.sent else None
        given = ("entry", "stepped") if stepped else ("entry",)
        names, fixed = (*self.names, *given), (*self.fixed, *given)
        return dataclasses.replace(self, names=names, fixed=fixed, init="entry", stepped=stepped)

    @property
    def visits_past_end(self) -> bool:
        """Whether what stands past the walk's own end counts."""
        return self.mirrored and (self.over is not None or not {LONG, EDGE}.isdisjoint(self.all_kinds))

    @property
    def tells_end(self) -> bool:
        """Whether the visit past a shard's end is left to the others, who are told of the rows there."""
        return self.mirrored and self.over is not None and not self.skips

    @property
    def all_kinds(self) -> tuple[str, ...]:
        return self.of_shown((*self.kinds, *(STEP for _ in self.saved), *(EDGE for _ in self.told)))

    @property
    def edges_put_out(self) -> dict[str, int]:
        """Which output is what stands at each edge."""
        return {}

    def edge_of(self, name: str) -> str | None:
        return dict(self.edges).get(name)


@jax.custom_jvp
def product(k, x):
    """k * x, reading x only where k is not 0. By k it has the derivative x all the same."""
    return jnp.where(k == 0, 0.0, k * x)


@product.defjvp
def _product_jvp(primals, tangents):
    (k, x), (dk, dx) = primals, tangents
    return product(k, x), dk * x + k * dx


@jax.custom_jvp
def exp_within(x, limit, above):
    """exp(x), or `above` where that is more than the limit; no derivative of it overflows."""
    y = jnp.exp(x)
    return jnp.where(y > limit, above, y)


@exp_within.defjvp
def _exp_within_jvp(primals, tangents):
    (x, limit, above), (dx, _, d_above) = primals, tangents
    return exp_within(x, limit, above), jnp.where(jnp.exp(x) > limit, d_above, exp_within(x, limit, 0.0) * dx)


def capped_exp(x, limit):
    """min(exp(x), limit)."""
    return exp_within(x, limit, limit)


OPS = SimpleNamespace(where=jnp.where, exp=jnp.exp, product=product, capped_exp=capped_exp)


@dataclasses.dataclass(frozen=True)
class Formula(Walk):
    """A walk given by formulas of `kernels.recurrences`: `recurrence` and `readout` name functions there."""

    recurrence: str = "linear"
    readout: str = "state"
    outs: int = 1
    state_out: int | None = None  # the output that is x itself

    @property
    def kinds(self):
        return (STEP,) * self.outs

    @property
    def bare(self):
        return self.recurrence == "linear"

    def at(self, now, near, beside):
        """The step that the formulas read."""
        return now

    def step(self, now, near, far, beside):
        return getattr(recurrences, self.recurrence)(OPS, self.at(now, near, beside))

    def read(self, x, carry, now, near, far, beside):
        return getattr(recurrences, self.readout)(OPS, self.at(now, near, beside), x, carry)


LINEAR = {
    reverse: Formula(("coefficient", "input", "init"), reverse, fixed=("init",), init="init", state_out=0)
    for reverse in (False, True)
}


def batch_shape(walk: Walk, shapes: Sequence[Sequence[int]], axis: int) -> tuple[int, ...]:
    """The full shape of one series: every operand's axes broadcast, T rows of time."""
    time = None
    for name, shape in zip(walk.names, shapes, strict=True):
        if name not in walk.fixed:
            time = shape[axis] - (name in walk.long)
    full = [next((n for n in sizes if n != 1), 1) for sizes in zip(*shapes, strict=True)]
    full[axis] = time
    return tuple(full)


def out_shape(kind: str, shape: tuple[int, ...], axis: int) -> tuple[int, ...]:
    rows = {STEP: shape[axis], LONG: shape[axis] + 1, SUM: 1, EDGE: 1}[kind]
    return (*shape[:axis], rows, *shape[axis + 1 :])


def accumulator(walk: Walk, dtypes: Sequence[Any]):
    """float64 if a float operand is, else float32."""
    wide = any(d == jnp.float64 for name, d in zip(walk.names, dtypes, strict=True) if name not in walk.flags)
    return jnp.dtype(jnp.float64) if wide else jnp.dtype(jnp.float32)


class Rows:
    """The operands of one row, each computed when a formula first asks for it."""

    _row: Callable[[str], Any]

    def __init__(self, row: Callable[[str], Any]):
        self.__dict__["_row"] = row

    def __getattr__(self, name: str) -> jax.Array:
        if name.startswith("__"):
            raise AttributeError(name)
        value = self.__dict__[name] = self._row(name)
        return value
