"""The adjoint of a walk: the mirrored walk that carries the cotangent of the state, derived from the walk's formula."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp

from ._walk import EDGE, LONG, STEP, SUM, Beside, Rows, Walk, either, negate, select


class Place(NamedTuple):
    """The base walk at one step: the rows there, the rows of the step it walked before, the state there and before."""

    rows: Rows
    ahead: Rows
    beside: Beside
    x: Rows  # x.x, read when a formula asks
    carry: Rows


def flags_kept(base: Walk, kept: tuple[str, ...]) -> tuple[str, ...]:
    """Those of the `kept` names that are flags."""
    return tuple(name for name in kept if name.removeprefix("ahead_") in (*base.flags, "beside"))


def edge_of_state(base: Walk, kept: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    """Which operand holds the state before the first step, if `x` is kept and there is one."""
    before = "incoming" if base.over else base.init
    return (("x", before),) if before and "x" in kept else ()


@dataclasses.dataclass(frozen=True)
class Adjoint(Walk):
    """Cotangents of the `wanted` operands of `base`, from those of its outputs that are `given`.

    With y the cotangent of x, the recurrence is y[t] = (what the outputs at t read of x[t]) + (what the outputs of the
    step before read of it) + a[before] * y[before]: affine, in the other direction, and every term of it follows from
    `base.step` and `base.read` by `jax.vjp`. A value that a step did not read gets exactly 0.
    """

    _: dataclasses.KW_ONLY
    base: Walk
    wanted: tuple[str, ...]
    given: tuple[int, ...]
    careful: bool = False  # it is differentiated itself: what is not read reaches no product, selected away or not

    mirrored = True

    @classmethod
    def of(cls, base: Walk, wanted: tuple[str, ...], given: tuple[int, ...], kept: tuple[str, ...]) -> Adjoint:
        """`kept` names what the forward pass saved beside operands.

        That is `x`, `ahead_NAME`: NAME at the next live step, or `incoming`: the state that came from another shard.
        """
        cotangents = tuple(f"ct{i}" for i in given)
        return cls(
            names=(*base.names, *kept, *cotangents),
            reverse=not base.reverse,
            flags=(*base.flags, *flags_kept(base, kept)),
            long=base.long,
            fixed=(*base.fixed, *("incoming" for name in kept if name == "incoming")),
            edges=(*base.edges, *edge_of_state(base, kept)),
            mask=base.mask,
            mask_mode=base.mask_mode,
            over=base.over,
            function=base.function,
            base=base,
            wanted=wanted,
            given=given,
        )

    @staticmethod
    def may_keep(base: Walk) -> tuple[str, ...]:
        """Everything an adjoint of `base` could read that the forward pass alone knows."""
        ahead = tuple(f"ahead_{name}" for name in base.names if name not in base.fixed) if base.skips else ()
        return ("x", *ahead, *(("ahead_beside",) if base.skips else ()))

    @property
    def kinds(self):
        def kind(name):
            if name in self.base.fixed:
                return EDGE if name in (self.base.init, *dict(self.base.edges).values()) else SUM
            return LONG if name in self.base.long else STEP

        return tuple(map(kind, self.wanted))

    @property
    def edges_put_out(self):
        return {name: i for i, name in enumerate(self.wanted) if name in dict(self.edges).values()}

    def _kept(self, rows, name):
        """What the forward pass kept; what it did not keep is not read, so anything of the right type will do."""
        if name in self.names:
            return getattr(rows, name)
        zero = self._zero(rows)
        return zero != 0 if name.removeprefix("ahead_") in (*self.base.flags, "beside") else zero

    def _state(self, rows) -> Rows:
        return Rows(lambda _: self._kept(rows, "x"))

    def _zero(self, rows):
        return jnp.zeros_like(getattr(rows, f"ct{self.given[0]}"))

    def _at(self, now, far, beside) -> Place:
        """The base walk at this step."""
        x, carry = self._state(now), self._state(far)
        if not self.skips:
            return Place(now, far, Beside(near=beside.far), x, carry)
        ahead = Rows(lambda name: getattr(now, name) if name in self.fixed else self._kept(now, f"ahead_{name}"))
        return Place(now, ahead, Beside(near=self._kept(now, "ahead_beside")), x, carry)

    def _before(self, now, near, beside) -> Place:
        """The base walk at the step we come from; past our end that was its first step, with but an edge before it."""
        if self.careful:
            masked = negate(near.mask) if self.mask and not self.skips else False
            near, now = (self.guarded(rows, lambda: either(masked, negate(beside.near))) for rows in (near, now))
        return Place(near, now, Beside(near=beside.here), self._state(near), self._state(now))

    def _local(self, place, x, carry, rows, ahead):
        """(a, b, the given outputs) of the base at `place`; under skip it is live there."""
        args = (rows, ahead, None, place.beside)
        a, b = self.base.step(*args) if self.skips else self.base.coefficients(*args)
        outs = self.base.read(x, carry, *args) if self.skips else self.base.outputs(x, carry, *args)
        return a, b, tuple(outs[i] for i in self.given)

    def _cotangents(self, place):
        return tuple(getattr(place.rows, f"ct{i}") for i in self.given)

    def _onto_states(self, place):
        """What the outputs at `place` pass on to (x, carry). They are linear in both, so the point does not matter."""
        zero = self._zero(place.rows)
        _, pull = jax.vjp(lambda x, carry: self._local(place, x, carry, place.rows, place.ahead)[2], zero, zero)
        return pull(self._cotangents(place))

    def _onto_operands(self, place, y, rows: tuple[str, ...], ahead: tuple[str, ...]):
        """Cotangents, by name, of the rows and of the ahead rows at `place`, where the state's cotangent is y."""
        if not rows and not ahead:
            return {}

        def local(values):
            def replaced(old, new):
                return Rows(lambda name: values[name] if name in new else getattr(old, name))

            now, next_row = replaced(place.rows, rows), replaced(place.ahead, ahead)
            a, b, outs = self._local(place, place.x.x, place.carry.x, now, next_row)
            return full(a, y), full(b, y), outs

        values = {name: getattr(place.rows if name in rows else place.ahead, name) for name in {*rows, *ahead}}
        (a, _, _), pull = jax.vjp(local, values)
        carry = place.carry.x
        if self.base.bare or self.careful:
            carry = jnp.where((a == 0) & ~jnp.isfinite(carry), 0.0, carry)
        return pull((y * carry, y, self._cotangents(place)))[0]

    def step(self, now, near, far, beside):
        before = self._before(now, near, beside)
        zero = self._zero(near)
        a = self._local(before, zero, zero, before.rows, before.ahead)[0]
        b = select(beside.near, self._onto_states(before)[1], 0.0)
        if beside.here:
            b = b + self._onto_states(self._at(now, far, beside))[0]
        return select(beside.near, a, 1.0 if self.over else 0.0), b

    def read(self, x, carry, now, near, far, beside):
        owner = {edge: name for name, edge in self.base.edges}
        series = tuple(dict.fromkeys(owner.get(n, n) for n in self.wanted if n not in self.fixed or n in owner))
        fixed = tuple(n for n, kind in zip(self.wanted, self.kinds, strict=True) if kind == SUM)
        behind = self._onto_operands(self._before(now, near, beside), carry, (), series)
        total = {name: select(beside.near, ct, 0.0) for name, ct in behind.items()}
        if beside.here:
            for name, ct in self._onto_operands(self._at(now, far, beside), x, (*series, *fixed), fixed).items():
                total[name] = total[name] + ct if name in total else ct
        return tuple(x if n == self.base.init else total.get(owner.get(n, n), 0.0) for n in self.wanted)


def full(value, like):
    """A term of a formula, which may be a bare number, with the shape and type of `like`."""
    return jnp.broadcast_to(jnp.asarray(value, like.dtype), like.shape)
