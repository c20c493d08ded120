"""Every estimator as a plain float64 loop over time: the answer that the other implementations are compared with.

Arguments have the names and meaning of the public functions. `**shared` stands for the arguments that they share:
`time_axis`, `bootstrap_value`, `next_values`, `terminated`, `truncated`, `episode_starts`, `next_episode_start`, `mask`
and `mask_mode`. Nothing here uses the rest of the package.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from ._reference_window import Array, Window


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
    window = Window(inputs, trace=coefficients, initial=initial, time_axis=time_axis)
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
    window = Window(rewards, values=values, discount=discount, lambda_=lambda_, **shared)
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
    window = Window(rewards, values=values, rho=rho, discount=discount, lambda_=lambda_, **shared)
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
    window = Window(
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
    window = Window(rewards, values=q_taken, next_values=next_expected_q, trace=traces, discount=discount, **shared)
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
    window = Window(rewards, values=values, discount=discount, lambda_=lambda_, **shared)
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
    window = Window(rewards, discount=discount, initial=bootstrap_value, **shared)
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
    window = Window(rewards, values=values, discount=discount, lambda_=lambda_, **shared)
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
    window = Window(inputs, discount=discount, lambda_=lambda_, initial=initial, **shared)
    traces = window.zeros()
    for column, steps in window.columns():
        carry = window.initial[column]
        for s in steps:
            traces[s.index] = z = s.x + (0.0 if s.start else carry)
            carry = _times(_times(s.g, s.l), z)
    return window.back(traces)


def episodic_prefix_sum(inputs: ArrayLike, *, initial: ArrayLike | None = None, **shared: Any) -> Array:
    """C_t = x_t + (C_{t-1} unless end_{t-1}); C_0 = x_0 + initial, dropped if episode_starts[0]."""
    window = Window(inputs, initial=initial, **shared)
    sums = window.zeros()
    for column, steps in window.columns():
        carry = window.initial[column]
        for s in steps:
            sums[s.index] = carry = s.x + (0.0 if s.start else carry)
    return window.back(sums)
