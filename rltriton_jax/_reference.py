"""Every estimator as a plain float64 loop over time: the answer that the other implementations are compared with.

Arguments have the names and meaning of the public functions. `**shared` stands for the arguments that they share:
`time_axis`, `bootstrap_value`, `next_values`, `terminated`, `truncated`, `episode_starts`, `next_episode_start`, `mask`
and `mask_mode`. Nothing here uses the rest of the package.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

Array = np.ndarray[Any, Any]
Column = tuple[int, ...]


class _Window:
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


def _times(coefficient: float, carry: float) -> float:
    """Their product; a carry behind a coefficient of 0 is not read."""
    return 0.0 if coefficient == 0 else coefficient * carry


def _clip(ratio: float, limit: float | None) -> float:
    return ratio if limit is None else min(ratio, limit)


def _ratios(log_rhos: ArrayLike | None, rhos: ArrayLike | None) -> Array:
    if (log_rhos is None) == (rhos is None):
        raise ValueError("give log_rhos or rhos")
    with np.errstate(over="ignore"):
        return np.exp(np.asarray(log_rhos, np.float64)) if rhos is None else np.asarray(rhos, np.float64)


def linear_recurrence(
    coefficients: ArrayLike,
    inputs: ArrayLike,
    initial: ArrayLike | None = None,
    *,
    reverse: bool = False,
    time_axis: int = 0,
) -> Array:
    """x_t = b_t + a_t x_{t-1}, x_{-1} = initial; with `reverse`, x_t = b_t + a_t x_{t+1}, x_T = initial."""
    window = _Window(inputs, trace=coefficients, initial=initial, time_axis=time_axis)
    out = window.zeros()
    for column, steps in window.columns():
        x = window.initial[column]
        for s in reversed(steps) if reverse else steps:
            out[s.index] = x = s.x + _times(s.trace, x)
    return window.back(out)


def gae(
    rewards: ArrayLike, values: ArrayLike, *, discount: ArrayLike, lambda_: ArrayLike, **shared: Any
) -> tuple[Array, Array]:
    """A_t = r_t + g_t w_t - V_t + g_t l_t (A_{t+1} unless end_t), A_T = 0. Returns A and A + V."""
    window = _Window(rewards, values=values, discount=discount, lambda_=lambda_, **shared)
    advantages, targets = window.zeros(), window.zeros()
    for _, steps in window.columns():
        a = 0.0
        for s in reversed(steps):
            carry = _times(_times(s.g, s.l), a) if s.goes_on else 0.0
            a = s.x + s.g * s.w - s.v + carry
            advantages[s.index], targets[s.index] = a, a + s.v
    return window.back(advantages), window.back(targets)


def vtrace(
    rewards: ArrayLike,
    values: ArrayLike,
    *,
    log_rhos: ArrayLike | None = None,
    rhos: ArrayLike | None = None,
    discount: ArrayLike,
    lambda_: ArrayLike = 1.0,
    clip_rho: float | None = 1.0,
    clip_c: float | None = 1.0,
    clip_pg_rho: float | None = 1.0,
    **shared: Any,
) -> tuple[Array, Array]:
    """D_t = min(clip_rho, rho_t) (r_t + g_t w_t - V_t) + g_t c_t (D_{t+1} unless end_t), D_T = 0.

    c_t = l_t min(clip_c, rho_t). Returns V + D and
    min(clip_pg_rho, rho_t) (r_t + g_t (w_t + l_t D_{t+1} unless end_t) - V_t).
    """
    rho = _ratios(log_rhos, rhos)
    window = _Window(rewards, values=values, rho=rho, discount=discount, lambda_=lambda_, **shared)
    targets, advantages = window.zeros(), window.zeros()
    for _, steps in window.columns():
        d = 0.0
        for s in reversed(steps):
            error = s.x + s.g * s.w - s.v
            weight = _times(s.g, s.l) if s.goes_on else 0.0
            advantages[s.index] = _clip(s.rho, clip_pg_rho) * (error + _times(weight, d))
            d = _clip(s.rho, clip_rho) * error + _times(_times(weight, _clip(s.rho, clip_c)), d)
            targets[s.index] = s.v + d
    return window.back(targets), window.back(advantages)


def retrace(
    rewards: ArrayLike,
    q_taken: ArrayLike,
    *,
    next_expected_q: ArrayLike,
    log_rhos: ArrayLike | None = None,
    rhos: ArrayLike | None = None,
    discount: ArrayLike,
    lambda_: ArrayLike = 1.0,
    clip_c: float | None = 1.0,
    clip_rho: float | None = 1.0,
    **shared: Any,
) -> tuple[Array, Array]:
    """D_t = r_t + g_t x_t - Q_t + g_t c_{t+1} (D_{t+1} unless end_t), D_T = 0, c_t = l_t min(clip_c, rho_t).

    x_t is next_expected_q[t] as read. Returns G = Q + D and min(clip_rho, rho_t) (r_t + g_t y_t - Q_t), where y_t is
    G_{t+1}, or x_t where the episode or the window ends.
    """
    rho = _ratios(log_rhos, rhos)
    window = _Window(
        rewards, values=q_taken, next_values=next_expected_q, rho=rho, discount=discount, lambda_=lambda_, **shared
    )
    targets, advantages = window.zeros(), window.zeros()
    for _, steps in window.columns():
        d = c = target = 0.0
        for s in reversed(steps):
            bootstrap = _times(s.g, target) if s.goes_on else s.g * s.w
            advantages[s.index] = _clip(s.rho, clip_rho) * (s.x + bootstrap - s.v)
            carry = _times(_times(s.g, c), d) if s.goes_on else 0.0
            d = s.x + s.g * s.w - s.v + carry
            c = _times(s.l, _clip(s.rho, clip_c))
            targets[s.index] = target = s.v + d
    return window.back(targets), window.back(advantages)


def off_policy_returns(
    rewards: ArrayLike,
    q_taken: ArrayLike,
    *,
    next_expected_q: ArrayLike,
    traces: ArrayLike,
    discount: ArrayLike,
    **shared: Any,
) -> Array:
    """G = Q + D, D_t = r_t + g_t x_t - Q_t + g_t c_{t+1} (D_{t+1} unless end_t), D_T = 0, c = traces."""
    window = _Window(rewards, values=q_taken, next_values=next_expected_q, trace=traces, discount=discount, **shared)
    targets = window.zeros()
    for _, steps in window.columns():
        d = c = 0.0
        for s in reversed(steps):
            carry = _times(_times(s.g, c), d) if s.goes_on else 0.0
            d, c = s.x + s.g * s.w - s.v + carry, s.trace
            targets[s.index] = s.v + d
    return window.back(targets)


def _mixed(s: SimpleNamespace, following: float) -> float:
    """r_t + g_t [(1 - l_t) w_t + l_t G_{t+1}]; r_t + g_t w_t where the episode or the window ends."""
    if not s.goes_on:
        return s.x + s.g * s.w
    if s.g == 0:
        return s.x
    return s.x + s.g * (_times(1.0 - s.l, s.w) + _times(s.l, following))


def lambda_returns(
    rewards: ArrayLike, values: ArrayLike | None = None, *, discount: ArrayLike, lambda_: ArrayLike, **shared: Any
) -> Array:
    """G_t = r_t + g_t [(1 - l_t) w_t + l_t G_{t+1}]; r_t + g_t w_t at end_t and at the last step."""
    window = _Window(rewards, values=values, discount=discount, lambda_=lambda_, **shared)
    returns = window.zeros()
    for _, steps in window.columns():
        g = 0.0
        for s in reversed(steps):
            returns[s.index] = g = _mixed(s, g)
    return window.back(returns)


def discounted_returns(
    rewards: ArrayLike, *, discount: ArrayLike, bootstrap_value: ArrayLike = 0.0, **shared: Any
) -> Array:
    """G_t = r_t + g_t G_{t+1}, G_T = bootstrap_value; r_t + g_t w_t at end_t, where w_t is 0 or next_values[t]."""
    window = _Window(rewards, discount=discount, initial=bootstrap_value, **shared)
    returns = window.zeros()
    for column, steps in window.columns():
        g = window.initial[column]
        for s in reversed(steps):
            returns[s.index] = g = s.x + (s.g * s.w if s.end else _times(s.g, g))
    return window.back(returns)


def n_step_returns(
    rewards: ArrayLike,
    values: ArrayLike | None = None,
    *,
    n: int,
    discount: ArrayLike,
    lambda_: ArrayLike = 1.0,
    **shared: Any,
) -> Array:
    """Gn: G1_t = r_t + g_t w_t, Gk_t = r_t + g_t [(1 - l_t) w_t + l_t G(k-1)_{t+1}]; r_t + g_t w_t at an end."""
    if n < 1:
        raise ValueError(f"n is {n}")
    window = _Window(rewards, values=values, discount=discount, lambda_=lambda_, **shared)
    returns = window.zeros()
    for _, steps in window.columns():
        for first, s in enumerate(steps):
            depth = steps[first : first + n]
            g = depth[-1].x + depth[-1].g * depth[-1].w
            for inner in reversed(depth[:-1]):
                g = _mixed(inner, g)
            returns[s.index] = g
    return window.back(returns)


def eligibility_traces(
    inputs: ArrayLike, *, discount: ArrayLike, lambda_: ArrayLike, initial: ArrayLike | None = None, **shared: Any
) -> Array:
    """z_t = x_t + g_{t-1} l_{t-1} (z_{t-1} unless end_{t-1}); z_0 = x_0 + initial, dropped if episode_starts[0]."""
    window = _Window(inputs, discount=discount, lambda_=lambda_, initial=initial, **shared)
    traces = window.zeros()
    for column, steps in window.columns():
        carry = window.initial[column]
        for s in steps:
            traces[s.index] = z = s.x + (0.0 if s.start else carry)
            carry = _times(_times(s.g, s.l), z)
    return window.back(traces)


def episodic_prefix_sum(inputs: ArrayLike, *, initial: ArrayLike | None = None, **shared: Any) -> Array:
    """C_t = x_t + (C_{t-1} unless end_{t-1}); C_0 = x_0 + initial, dropped if episode_starts[0]."""
    window = _Window(inputs, initial=initial, **shared)
    sums = window.zeros()
    for column, steps in window.columns():
        carry = window.initial[column]
        for s in steps:
            sums[s.index] = carry = s.x + (0.0 if s.start else carry)
    return window.back(sums)
