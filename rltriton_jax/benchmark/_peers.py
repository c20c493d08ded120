"""What the package is measured against: `lax.associative_scan` and `lax.scan` as a user would write them, and rlax."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from ._cases import Case
from ._estimators import DISCOUNT, ESTIMATORS, LAMBDA, STEPS, Ops, ours

OURS = ("triton", "None")
NAMES = (*OURS, "associative_scan", "scan", "scan unroll=16", "scan unroll=T", "shifts", "rlax")
SLOW_STEP = 7e-6  # seconds a step of an unrolled-by-1 `lax.scan` takes on a GPU at any width: its launches

Call = Callable[[dict[str, Any]], tuple[Any, ...]]


def by_associative_scan(a: Any, b: Any, axis: int, reverse: bool) -> Any:
    def compose(first: Any, then: Any) -> Any:
        return first[0] * then[0], then[0] * first[1] + then[1]

    return jax.lax.associative_scan(compose, (jnp.broadcast_to(a, b.shape), b), axis=axis, reverse=reverse)[1]


def by_scan(a: Any, b: Any, axis: int, reverse: bool, unroll: int = 1) -> Any:
    def step(x: Any, ab: Any) -> Any:
        x = ab[0] * x + ab[1]
        return x, x

    rows = jnp.moveaxis(jnp.broadcast_to(a, b.shape), axis, 0), jnp.moveaxis(b, axis, 0)
    return jnp.moveaxis(
        jax.lax.scan(step, jnp.zeros_like(rows[1][0]), rows, reverse=reverse, unroll=unroll)[1], 0, axis
    )


def _plain(case: Case, solve: Callable[..., Any]) -> Call:
    """The formula over whole arrays, in float32 where the arrays hold less."""

    def call(args: dict[str, Any]) -> tuple[Any, ...]:
        wide = {k: x.astype(jnp.float32) if x.dtype == jnp.bfloat16 else x for k, x in args.items()}
        outs = ESTIMATORS[case.estimator].plain(Ops(jnp, case.time_axis, solve), wide)
        return tuple(x.astype(case.dtype) for x in outs)

    return call


def _rlax(case: Case) -> Call | None:
    """rlax's function of one sequence, mapped over the batch axes."""
    try:
        import rlax
    except ImportError:
        return None

    def discounts(a: dict[str, Any]) -> Any:
        return jnp.where(a["terminated"], 0.0, DISCOUNT)

    def gae(a: dict[str, Any]) -> tuple[Any, ...]:
        advantages = rlax.truncated_generalized_advantage_estimation(a["rewards"], discounts(a), LAMBDA, a["values"])
        return advantages, advantages + a["values"][:-1]

    def vtrace(a: dict[str, Any]) -> tuple[Any, ...]:
        v = a["values"]
        out = rlax.vtrace_td_error_and_advantage(
            v[:-1], v[1:], a["rewards"], discounts(a), jnp.exp(a["log_rhos"]), LAMBDA, stop_target_gradients=False
        )
        # rlax mixes the next target into its advantages by lambda in the same way
        return v[:-1] + out.errors, out.pg_advantage

    def off_policy(a: dict[str, Any]) -> tuple[Any, ...]:
        return (
            rlax.general_off_policy_returns_from_q_and_v(
                a["q_taken"][1:], a["next_expected_q"], a["rewards"], discounts(a), a["traces"][1:]
            ),
        )

    per_sequence: dict[str, Call] = {
        "gae": gae,
        "vtrace": vtrace,
        "off_policy_returns": off_policy,
        "lambda_returns": lambda a: (rlax.lambda_returns(a["rewards"], discounts(a), a["values"][1:], LAMBDA),),
        "discounted_returns": lambda a: (rlax.discounted_returns(a["rewards"], discounts(a), 0.0),),
        "n_step_returns": lambda a: (
            rlax.n_step_bootstrapped_returns(a["rewards"], discounts(a), a["values"][1:], STEPS),
        ),
    }
    if case.estimator not in per_sequence:
        return None

    def call(args: dict[str, Any]) -> tuple[Any, ...]:
        wide = {k: x.astype(jnp.float32) if x.dtype == jnp.bfloat16 else x for k, x in args.items()}
        mapped = per_sequence[case.estimator]
        axes = [i for i in range(len(case.shape)) if i != case.time_axis]
        for before, axis in reversed(list(enumerate(axes))):  # an inner map sees arrays without the axes before its own
            mapped = jax.vmap(mapped, in_axes=axis - before, out_axes=axis - before)
        return tuple(x.astype(case.dtype) for x in mapped(wide))

    return call


def calls(case: Case, gpu: bool) -> dict[str, Call]:
    """Everything that can compute the case, by name; the package first."""

    def own(name: str | None) -> Call:
        return lambda args: ours(case.estimator, args, case.time_axis, name)

    found: dict[str, Call] = {"triton": own("triton")} if gpu else {}
    found["None"] = own(None)
    if case.masked:  # as plain JAX this is pages of code: the package's own plain forms stand in
        return {**found, "associative_scan": own("associative_scan"), "scan": own("scan")}
    found["associative_scan"] = _plain(case, by_associative_scan)
    found["scan"] = _plain(case, by_scan)
    found["scan unroll=16"] = _plain(case, functools.partial(by_scan, unroll=16))
    if case.length <= 128:
        found["scan unroll=T"] = _plain(case, functools.partial(by_scan, unroll=case.length))
    if case.estimator == "n_step_returns":
        found = {k: v for k, v in found.items() if not k.startswith("scan")}
        found["shifts"] = found.pop("associative_scan")
    rlax = _rlax(case)
    return {**found, "rlax": rlax} if rlax else found


def too_slow(name: str, case: Case, gpu: bool) -> str | None:
    """Why a peer is left out at this length, or None."""
    per_step = {"scan": SLOW_STEP, "rlax": SLOW_STEP, "scan unroll=16": SLOW_STEP / 4}.get(name, 0.0)
    seconds = per_step * case.length * (2 if case.gradient else 1)
    return f"about {seconds:.1f} s a call" if gpu and seconds > 0.5 else None


def with_gradient(case: Case, call: Call) -> Callable[..., Any]:
    """Value and vjp: (operands, cotangents) -> (outputs, gradients)."""
    wanted = ESTIMATORS[case.estimator].wanted

    def both(args: dict[str, Any], cotangents: tuple[Any, ...]) -> Any:
        def by_wanted(some: dict[str, Any]) -> Any:
            return call({**args, **some})

        outs, pull = jax.vjp(by_wanted, {name: args[name] for name in wanted})
        return outs, pull(cotangents)[0]

    return both
