"""Where episodes end: the one home of the rules that turn flags, masks and zero discounts into what a step may read."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from ._walk import Beside, Flag, Formula, Rows, both, either, negate, select


@dataclasses.dataclass(frozen=True)
class _Episodic(Formula):
    """A formula whose step is the operands' rows, and what `_rules` derives of them."""

    differentiated: bool = True  # what a formula drops by `where` must be 0 before, or its derivative there is 0 * NaN

    def to_run(self) -> Formula:
        return dataclasses.replace(self, differentiated=False)

    def at(self, now: Rows, near: Rows, beside: Beside) -> Rows:
        rules = self._rules(now, near, beside)
        return Rows(lambda name: rules[name]() if name in rules else getattr(now, name))

    def _rules(self, now: Rows, near: Rows, beside: Beside) -> dict[str, Any]:
        raise NotImplementedError

    def _given(self, name: str) -> bool:
        return name in self.names

    def _unless(self, rows: Rows, hidden: Callable[[], Flag]) -> Rows:
        return self.guarded(rows, hidden) if self.differentiated else rows

    def _per_step(self, *names: str) -> bool:
        return any(self._given(name) and name not in self.fixed for name in names)

    def _flag(self, rows: Rows, name: str) -> Flag:
        return getattr(rows, name) if self._given(name) else False

    def _zero_discount(self, rows: Rows) -> Flag:
        """A discount per step that is 0 cuts; one for all time does not, so that its derivative stays right."""
        return rows.discount == 0 if self._per_step("discount") else False

    def _reset(self, rows: Rows) -> Flag:
        """Masks reset, and the step is masked."""
        return negate(rows.mask) if self.mask and not self.skips else False

    def _masked_neighbour(self, near: Rows, beside: Beside) -> Flag:
        """Masks reset, and the neighbour is masked."""
        return both(beside.near, self._reset(near))


@dataclasses.dataclass(frozen=True)
class Backward(_Episodic):
    """x[t] from x[t + 1]: the trace stops behind a terminated or truncated step; a terminated one has no next value."""

    reverse: bool = True

    def _rules(self, now: Rows, near: Rows, beside: Beside) -> dict[str, Any]:
        def masked_next() -> Flag:
            return self._masked_neighbour(near, beside)

        def gone() -> Flag:
            no_value = False if self._given("next_value") else masked_next()
            return either(self._flag(now, "terminated"), self._flag(near, "start"), self._zero_discount(now), no_value)

        def end() -> Flag:
            return either(gone(), self._flag(now, "truncated"), masked_next())

        def stops() -> Flag:
            return either(end(), negate(beside.near))

        def w() -> Any:
            return select(gone(), 0.0, now.next_value if self._given("next_value") else near.value)

        def discount() -> Any:
            return now.discount if "discount" in self.fixed else select(gone(), 0.0, now.discount)

        return {
            "w": w,
            "discount": discount,
            "end": end,
            "last": lambda: negate(beside.near),
            "stops": stops,
            "cut": stops if self._per_step("discount", "lambda_") else end,
            "traced": lambda: self._unless(now, stops),
            "after": lambda: self._unless(near, lambda: either(stops(), self._reset(now))),
            "given": lambda: self._given,
        }


@dataclasses.dataclass(frozen=True)
class Forward(_Episodic):
    """x[t] from x[t - 1]: an end behind t - 1, or a start at t, drops what came before."""

    reverse: bool = False

    def _rules(self, now: Rows, near: Rows, beside: Beside) -> dict[str, Any]:
        def end() -> Flag:
            ended = either(self._flag(near, "terminated"), self._flag(near, "truncated"), self._zero_discount(near))
            return either(self._flag(now, "start"), both(beside.near, ended), self._masked_neighbour(near, beside))

        def dropped() -> Flag:
            return either(end(), negate(beside.near), negate(now.mask) if self.mask else False)

        return {
            "end": end,
            "first": lambda: negate(beside.near),
            "before": lambda: self._unless(near, dropped),
            "given": lambda: self._given,
        }
