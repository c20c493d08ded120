"""How the float64 loops see a window of time: one column at a time, boundaries, masks and next values resolved step by step."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

Array = np.ndarray[Any, Any]
Column = tuple[int, ...]


class Window:
    """Rows seen one column at a time. The rules about boundaries, masks and next values are all in `_steps`."""

    def __init__(
        self,
        data: ArrayLike,
        *,
        time_axis: int = 0,
        discount: ArrayLike = 1.0,
        lambda_: ArrayLike = 1.0,
        values: ArrayLike | None = None,
        bootstrap_value: ArrayLike | None = None,
        next_values: ArrayLike | None = None,
        terminated: ArrayLike | None = None,
        truncated: ArrayLike | None = None,
        episode_starts: ArrayLike | None = None,
        next_episode_start: ArrayLike | None = None,
        mask: ArrayLike | None = None,
        mask_mode: str = "skip",
        initial: ArrayLike | None = None,
        rho: ArrayLike | None = None,
        trace: ArrayLike | None = None,
    ) -> None:
        if mask_mode not in ("skip", "reset"):
            raise ValueError(f"mask_mode is {mask_mode!r}")
        x = np.asarray(data, np.float64)
        self.axis = time_axis % x.ndim
        self.x = np.moveaxis(x, self.axis, 0)
        self.shape, self.length, self.batch = self.x.shape, self.x.shape[0], self.x.shape[1:]
        self.reset = mask_mode == "reset"
        self.g, self.l = self._rows(discount), self._rows(lambda_)
        self.rho, self.trace, self.next_values = self._rows(rho), self._rows(trace), self._rows(next_values)
        self.values = self._rows(values, self._row(bootstrap_value))
        self.terminated, self.truncated = self._rows(terminated), self._rows(truncated)
        self.starts = self._rows(episode_starts, self._row(next_episode_start))
        self.mask = self._rows(1.0 if mask is None else mask)
        self.initial = self._row(0.0 if initial is None else initial)
        given = np.shape(discount)
        self.per_step = len(given) > self.axis and given[self.axis] == self.length

    def _rows(self, given: ArrayLike | None, row_past_the_window: Array | None = None) -> Any:
        """`[T, *batch]` or `[T + 1, *batch]`: time first, missing trailing axes and axes of size 1 broadcast."""
        if given is None:
            return None
        array = np.asarray(given, np.float64)
        array = array.reshape(array.shape + (1,) * (len(self.shape) - array.ndim))
        array = np.moveaxis(array, self.axis, 0)
        rows = array.shape[0] if array.shape[0] == self.length + 1 and self.length else self.length
        if self.length == 0:
            return np.zeros((1, *self.batch))
        array = np.broadcast_to(array, (rows, *self.batch))
        if row_past_the_window is not None:
            array = np.concatenate([array[: self.length], row_past_the_window[None]])
        return array

    def _row(self, given: ArrayLike | None) -> Any:
        if given is None:
            return None
        array = np.asarray(given, np.float64)
        return np.broadcast_to(array.reshape(array.shape + (1,) * (len(self.batch) - array.ndim)), self.batch)

    def _steps(self, column: Column) -> list[SimpleNamespace]:
        """The live steps of one column in time order. Of each: what it holds, and

        w      the next value as read: 0 where the step terminated or has a per-step discount of 0
        end    nothing is carried from the next live step back to this one, or from this one on
        goes_on  a next live step exists and is of the same episode
        start  nothing is carried into this step from before
        """
        live = [t for t in range(self.length) if self.mask[t][column] != 0]
        steps: list[SimpleNamespace] = []
        for k, t in enumerate(live):

            def at(array: Array | None, row: int = t) -> float | None:
                return None if array is None or row >= len(array) else float(array[row][column])

            last = k + 1 == len(live)
            if self.reset:
                following = t + 1
                before_dead = following < self.length and self.mask[following][column] == 0
            else:
                following = self.length if last else live[k + 1]
                before_dead = False
            terminated = bool(at(self.terminated)) or bool(at(self.starts, following))
            truncated = bool(at(self.truncated))
            s = SimpleNamespace(index=(t, *column), x=at(self.x), v=at(self.values), g=at(self.g), l=at(self.l))
            s.rho, s.trace = at(self.rho), at(self.trace)
            s.end = terminated or truncated or before_dead
            s.last, s.goes_on = last, not (s.end or last)
            if terminated or (self.per_step and s.g == 0):
                s.w = s.g = 0.0
            elif self.next_values is not None:
                s.w = at(self.next_values)
            elif before_dead:
                s.w = s.g = 0.0
            elif truncated and self.values is not None:
                raise ValueError("truncated needs next_values")
            else:
                s.w = at(self.values, following)
            if steps:
                s.start = steps[-1].end
            else:
                s.start = bool(at(self.starts)) or (self.reset and t > 0)
            steps.append(s)
        return steps

    def columns(self) -> Iterator[tuple[Column, list[SimpleNamespace]]]:
        """(column, its live steps) for every column of the batch."""
        for column in np.ndindex(*self.batch):
            yield column, self._steps(column)

    def zeros(self) -> Array:
        return np.zeros(self.shape)

    def back(self, array: Array) -> Array:
        return np.moveaxis(array, 0, self.axis)
