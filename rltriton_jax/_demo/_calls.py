"""One call of each public estimator on the data of a roll-out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp

from ._data import Data

DISCOUNT, LAMBDA, STEPS = 0.99, 0.95, 5

Arguments = dict[str, Any]


def _ends(d: Data) -> Arguments:
    return dict(terminated=d.terminated, truncated=d.truncated, mask=d.mask)


def _values(d: Data) -> Arguments:
    return dict(rewards=d.rewards, values=d.values, next_values=d.next_values, discount=DISCOUNT)


def _q(d: Data) -> Arguments:
    # the value of a state is the expectation of its action values
    return dict(rewards=d.rewards, q_taken=d.q_taken, next_expected_q=d.next_values, discount=DISCOUNT)


def _gae_by_hand(d: Data) -> Arguments:
    w = jnp.where(d.terminated, 0, d.next_values)
    errors = jnp.where(d.mask, d.rewards + DISCOUNT * w - d.values, 0)
    stops = d.terminated | d.truncated | ~d.mask
    return dict(coefficients=jnp.where(stops, 0, jnp.full_like(errors, DISCOUNT * LAMBDA)), inputs=errors, reverse=True)


def _n_step(d: Data) -> Arguments:
    # takes no mask: a masked step is an episode of its own
    return dict(**_values(d), n=STEPS, terminated=d.terminated | ~d.mask, truncated=d.truncated)


CALLS: dict[str, Callable[[Data], Arguments]] = {
    "gae": lambda d: dict(**_values(d), lambda_=LAMBDA, **_ends(d)),
    "vtrace": lambda d: dict(**_values(d), log_rhos=d.log_rhos, lambda_=LAMBDA, **_ends(d)),
    "retrace": lambda d: dict(**_q(d), log_rhos=d.log_rhos, lambda_=LAMBDA, **_ends(d)),
    "off_policy_returns": lambda d: dict(**_q(d), traces=LAMBDA * d.probability, **_ends(d)),
    "lambda_returns": lambda d: dict(**_values(d), lambda_=LAMBDA, **_ends(d)),
    "discounted_returns": lambda d: dict(
        rewards=d.rewards, next_values=d.next_values, bootstrap_value=d.next_values[-1], discount=DISCOUNT, **_ends(d)
    ),
    "n_step_returns": _n_step,
    "eligibility_traces": lambda d: dict(inputs=d.inputs, discount=DISCOUNT, lambda_=LAMBDA, **_ends(d)),
    "episodic_prefix_sum": lambda d: dict(inputs=d.rewards, **_ends(d)),
    "linear_recurrence": _gae_by_hand,
}
