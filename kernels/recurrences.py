"""One formula per estimator: the (a, b) of x[t] = a[t] * x[next] + b[t], and the outputs read off x.

A formula is plain text over one step `s`, with operators and the `where`, `exp`, `product` and `capped_exp` of `ops`, where
`product(k, x)` is k * x and reads x only where k is not 0, and `capped_exp(x, limit)` is the lesser of exp(x) and limit.
The same text is evaluated on whole arrays (`ops` is JAX's) and printed as a Triton function, for the forward pass and for
its adjoint.

A step has the operands by name (`s.reward`, `s.value`, `s.discount`, ...), and
  w       the next value, 0 where it is not read,
  end     the trace stops behind this step,
  last    no step follows it,
  stops   `end` or `last`,
  cut     `end`, and `last` too where the discount or lambda is an operand per step,
  traced  the operands of this step that weigh what follows, to be read under `where(s.stops, ...)` or `where(s.cut, ...)`,
  after   the operands of the step that follows, likewise (in a forward walk: `first`, no step came, and `before`),
  given   tells by name whether an operand was passed.
`ahead` is x of the step that was walked before.
"""


def state(ops, s, x, ahead):
    return (x,)


def linear(ops, s):
    return s.coefficient, s.input


def td_error(s):
    return s.reward + s.discount * s.w - s.value


def gae(ops, s):
    return ops.where(s.cut, 0.0, s.traced.discount * s.traced.lambda_), td_error(s)


def gae_outputs(ops, s, x, ahead):
    return x, x + s.value


def clipped(ops, s, at, bound):
    """min(bound, ratio) at a step."""
    if not s.given(bound):
        return ops.exp(at.log_rho) if s.given("log_rho") else at.rho
    limit = getattr(s, bound)
    return ops.capped_exp(at.log_rho, limit) if s.given("log_rho") else ops.where(at.rho > limit, limit, at.rho)


def vtrace(ops, s):
    trace = s.traced.lambda_ * clipped(ops, s, s.traced, "clip_c")
    return ops.where(s.stops, 0.0, s.traced.discount * trace), clipped(ops, s, s, "clip_rho") * td_error(s)


def vtrace_outputs(ops, s, x, ahead):
    carried = ops.product(ops.where(s.stops, 0.0, s.traced.discount * s.traced.lambda_), ahead)
    return s.value + x, clipped(ops, s, s, "clip_pg_rho") * (td_error(s) + carried)


def off_policy_returns(ops, s):
    return ops.where(s.stops, 0.0, s.discount * s.after.trace), s.reward + s.discount * s.w - s.q


def off_policy_outputs(ops, s, x, ahead):
    return (s.q + x,)


def retrace(ops, s):
    trace = s.after.lambda_ * clipped(ops, s, s.after, "clip_c")
    return ops.where(s.stops, 0.0, s.discount * trace), s.reward + s.discount * s.w - s.q


def retrace_outputs(ops, s, x, ahead):
    following = ops.where(s.stops, s.w, s.after.q + ops.where(s.stops, 0.0, ahead))
    return s.q + x, clipped(ops, s, s, "clip_rho") * (s.reward + s.discount * following - s.q)


def lambda_returns(ops, s):
    bootstrapped = ops.where(s.stops, s.w, ops.product(1.0 - s.traced.lambda_, s.w))
    return ops.where(s.stops, 0.0, s.traced.discount * s.traced.lambda_), s.reward + s.discount * bootstrapped


def one_step_returns(ops, s):
    return 0.0, s.reward + s.discount * s.w


def discounted_returns(ops, s):
    cut = ops.product(s.discount, ops.where(s.end, s.w, 0.0)) if s.given("next_value") else 0.0
    return ops.where(s.end, 0.0, s.discount), s.reward + cut


def eligibility_traces(ops, s):
    decay = ops.where(s.first, 1.0, s.before.discount * s.before.lambda_)
    return ops.where(s.end, 0.0, decay), s.input


def episodic_prefix_sum(ops, s):
    return ops.where(s.end, 0.0, 1.0), s.input
