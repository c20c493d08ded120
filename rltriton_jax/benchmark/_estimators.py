"""Each estimator as the benchmark sees it: operands, the package's call, the formula of peers and reference."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import rltriton_jax

DISCOUNT, LAMBDA, STEPS = 0.99, 0.95, 5

Args = dict[str, Any]
Outs = tuple[Any, ...]

# How operands are drawn: REAL and LOG_RATIO have T rows, LONG has T + 1, UNIT is within [0, 1).
REAL, LONG, LOG_RATIO, UNIT = "real", "long", "log_ratio", "unit"


@dataclasses.dataclass(frozen=True)
class Estimator:
    """`wanted` are the operands to differentiate by; the backward pass must also read `residual`, whatever its form."""

    operands: dict[str, str]
    outs: int
    plain: Callable[..., tuple[Any, ...]]
    wanted: tuple[str, ...]
    residual: tuple[str, ...] = ()
    options: dict[str, Any] = dataclasses.field(default_factory=dict)
    flags: bool = True
    masks: bool = True

    @property
    def feed(self) -> str:
        """The operand that takes the first output of the call before, in a chain of calls."""
        return self.wanted[0]


def ours(name: str, args: dict[str, Any], axis: int, implementation: str | None) -> tuple[Any, ...]:
    """The package's own function."""
    spec = ESTIMATORS[name]
    args = dict(args)
    if not spec.flags:
        args = {k: v for k, v in args.items() if k not in ("terminated", "mask")}
    out = getattr(rltriton_jax, name)(**args, **spec.options, time_axis=axis, implementation=implementation)
    return tuple(out) if isinstance(out, tuple) else (out,)


def cut(x: Any, axis: int, start: int | None, stop: int | None) -> Any:
    """x[start:stop] along `axis`, for NumPy and JAX arrays."""
    return x[(slice(None),) * axis + (slice(start, stop),)]


class Ops:
    """What a plain formula needs: an array module, the axis of time, and `solve` for x[t] = a[t] * x[next] + b[t]."""

    def __init__(self, xp: Any, axis: int, solve: Callable[..., Any]):
        self.xp, self.axis, self._solve = xp, axis, solve

    def solve(self, a: Any, b: Any, reverse: bool = True) -> Any:
        return self._solve(a, b, self.axis, reverse)

    def states(self, values: Any) -> tuple[Any, Any]:
        """V[t] and V[t + 1]."""
        return cut(values, self.axis, None, -1), cut(values, self.axis, 1, None)

    def later(self, x: Any, last: Any) -> Any:
        """x[t + 1], and at the last step the last row of `last`."""
        return self.xp.concatenate([cut(x, self.axis, 1, None), cut(last, self.axis, -1, None)], self.axis)

    def earlier(self, x: Any, first: Any) -> Any:
        return self.xp.concatenate([cut(first, self.axis, None, 1), cut(x, self.axis, None, -1)], self.axis)

    def discount(self, args: dict[str, Any], g: float = DISCOUNT) -> Any:
        kind = next(iter(args.values())).dtype
        return self.xp.where(args["terminated"] != 0, self.xp.zeros((), kind), self.xp.asarray(g, kind))


def _gae(o: Ops, args: Args) -> Outs:
    (v, w), g = o.states(args["values"]), o.discount(args)
    advantages = o.solve(g * LAMBDA, args["rewards"] + g * w - v)
    return advantages, advantages + v


def _vtrace(o: Ops, args: Args) -> Outs:
    (v, w), g = o.states(args["values"]), o.discount(args)
    rho = o.xp.minimum(1.0, o.xp.exp(args["log_rhos"]))
    error = args["rewards"] + g * w - v
    d = o.solve(g * LAMBDA * rho, rho * error)
    return v + d, rho * (error + g * LAMBDA * o.later(d, 0 * d))


def _off_policy(o: Ops, args: Args, traces: Any) -> Any:
    q, g = args["q_taken"], o.discount(args)
    error = args["rewards"] + g * args["next_expected_q"] - q
    return q + o.solve(g * o.later(traces, 0 * traces), error)


def _retrace(o: Ops, args: Args) -> Outs:
    rho, g = o.xp.minimum(1.0, o.xp.exp(args["log_rhos"])), o.discount(args)
    targets = _off_policy(o, args, LAMBDA * rho)
    return targets, rho * (args["rewards"] + g * o.later(targets, args["next_expected_q"]) - args["q_taken"])


def _lambda_returns(o: Ops, args: Args) -> Outs:
    (_, w), g = o.states(args["values"]), o.discount(args)
    b = args["rewards"] + g * (1 - LAMBDA) * w
    last = args["rewards"] + g * w
    b = o.xp.concatenate([cut(b, o.axis, None, -1), cut(last, o.axis, -1, None)], o.axis)
    return (o.solve(g * LAMBDA, b),)


def _n_step(o: Ops, args: Args) -> Outs:
    (_, w), g = o.states(args["values"]), o.discount(args)
    returns = args["rewards"] + g * w
    for _ in range(STEPS - 1):
        returns = args["rewards"] + g * o.later(returns, w)
    return (returns,)


def _forward(decay: float) -> Callable[[Ops, Args], Outs]:
    def plain(o: Ops, args: Args) -> Outs:
        kept = o.discount(args, decay)
        return (o.solve(o.earlier(kept, 0 * kept), args["inputs"], reverse=False),)

    return plain


_VALUES = {"rewards": REAL, "values": LONG}
_Q = {"rewards": REAL, "q_taken": REAL, "next_expected_q": REAL}
_TD = {"discount": DISCOUNT, "lambda_": LAMBDA}

ESTIMATORS = {
    "gae": Estimator(_VALUES, 2, _gae, ("rewards", "values"), options=_TD),
    "vtrace": Estimator(
        {**_VALUES, "log_rhos": LOG_RATIO}, 2, _vtrace, ("rewards", "values"), ("log_rhos",), options=_TD
    ),
    "retrace": Estimator(
        {**_Q, "log_rhos": LOG_RATIO},
        2,
        _retrace,
        ("rewards", "q_taken", "next_expected_q"),
        ("log_rhos",),
        options=_TD,
    ),
    "off_policy_returns": Estimator(
        {**_Q, "traces": UNIT},
        1,
        lambda o, args: (_off_policy(o, args, args["traces"]),),
        ("rewards", "q_taken", "next_expected_q"),
        ("traces",),
        options={"discount": DISCOUNT},
    ),
    "lambda_returns": Estimator(_VALUES, 1, _lambda_returns, ("rewards", "values"), options=_TD),
    "discounted_returns": Estimator(
        {"rewards": REAL},
        1,
        lambda o, args: (o.solve(o.discount(args), args["rewards"]),),
        ("rewards",),
        options={"discount": DISCOUNT},
    ),
    "n_step_returns": Estimator(
        _VALUES, 1, _n_step, ("rewards", "values"), options={"n": STEPS, "discount": DISCOUNT}, masks=False
    ),
    "eligibility_traces": Estimator({"inputs": REAL}, 1, _forward(DISCOUNT * LAMBDA), ("inputs",), options=_TD),
    "episodic_prefix_sum": Estimator({"inputs": REAL}, 1, _forward(1.0), ("inputs",)),
    "linear_recurrence": Estimator(
        {"inputs": REAL, "coefficients": UNIT},
        1,
        lambda o, args: (o.solve(args["coefficients"], args["inputs"], reverse=False),),
        ("inputs", "coefficients"),
        ("coefficients",),
        flags=False,
        masks=False,
    ),
}
