"""The compat modules without steps, with shapes that do not fit, and with NaN behind the end of an episode."""

import functools
import re
import types

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from compat_inputs import NONLINEAR, RLAX, A, one_trajectory, rlax_arguments
from helpers import close
from rltriton_jax import compat

# --- no steps at all


def without_steps():
    """Calls of windows of two columns that hold no step, and the shape of each result; by name."""
    x, q, flags = jnp.zeros((2, 0)), jnp.zeros((2, 0, A)), jnp.zeros((2, 0), bool)
    one, t, tq, last = jnp.zeros((2, 1)), jnp.zeros((0, 2)), jnp.zeros((0, 2, A)), jnp.zeros(2)
    actions = jnp.zeros((2, 0), jnp.int32)
    stoix, triton = compat.stoix, compat.rl_triton
    batch = types.SimpleNamespace(done=t, value=t, reward=t)
    return {
        "brax": (lambda: compat.brax.compute_gae(t, t, t, t, last), (0, 2)),
        "purejaxrl": (lambda: compat.purejaxrl.calculate_gae(batch, last, 0.9, 0.5), (0, 2)),
        "tunix": (lambda: compat.tunix.compute_gae_advantages(x, x, flags, 0.9, 0.5), (2, 0)),
        "tunix.mc": (lambda: compat.tunix.compute_mc_returns(x), (2, 0)),
        "stoix.gae": (lambda: stoix.batch_truncated_generalized_advantage_estimation(x, x, 0.5, one), (2, 0)),
        "stoix.n_step": (lambda: stoix.batch_n_step_bootstrapped_returns(x, x, x, 2), (2, 0)),
        "stoix.q_and_v": (lambda: stoix.batch_general_off_policy_returns_from_q_and_v(x, x, x, x, x), (2, 0)),
        "stoix.retrace": (lambda: stoix.batch_retrace_continuous(x, x, x, x, x, x, 0.5), (2, 0)),
        "stoix.lambda_returns": (lambda: stoix.batch_lambda_returns(x, x, x, 0.5), (2, 0)),
        "stoix.discounted": (lambda: stoix.batch_discounted_returns(x, x, x), (2, 0)),
        "stoix.time_major": (lambda: stoix.batch_discounted_returns(t, t, t, time_major=True), (0, 2)),
        "stoix.scalar": (lambda: stoix.batch_discounted_returns(x, x, 1.0), (2, 0)),
        "stoix.errors": (lambda: stoix.importance_corrected_td_errors(x[0], x[0], x[0], 0.5, one[0]), (0,)),
        "stoix.q_lambda": (lambda: stoix.batch_q_lambda(t, t, tq, 0.5, time_major=True), (0, 2)),
        "rl_triton.gae": (lambda: triton.compute_gae(x, x, x, x, bootstrap_values=x), (2, 0)),
        "rl_triton.last_value": (lambda: triton.compute_gae(x, x, x, last_value=last), (2, 0)),
        "rl_triton.vtrace": (lambda: triton.compute_vtrace(x, x, x, x, x, x, last_value=last), (2, 0)),
        "rl_triton.retrace": (lambda: triton.compute_retrace(q, x, x, q, actions, x, x, x, 0.9), (2, 0)),
        "rl_triton.lambda_returns": (lambda: triton.compute_lambda_returns(x, x, x, x, bootstrap_values=x), (2, 0)),
        "rl_triton.discounted": (lambda: triton.compute_discounted_returns(x, x, x, bootstrap_values=x), (2, 0)),
        "rl_triton.traces": (lambda: triton.compute_eligibility_traces(x, x, 0.9, 0.5, last), (2, 0)),
        "rl_triton.sums": (lambda: triton.compute_episodic_prefix_sum(x, x, last), (2, 0)),
    }


@pytest.mark.parametrize("name", [*without_steps(), *RLAX])
def test_no_steps_give_empty_results(name):
    if name in RLAX:
        if name in NONLINEAR:
            pytest.importorskip("rlax")
        kwargs = one_trajectory(rlax_arguments(name, masked=True, per_step=True))
        kwargs = {k: v[: int(k == "values")] if isinstance(v, np.ndarray) else v for k, v in kwargs.items()}
        call, shape = lambda: getattr(compat.rlax, name)(**kwargs), (0,)
    else:
        call, shape = without_steps()[name]
    for out in jax.tree.leaves(call()):
        assert (out.shape, out.dtype) == (shape, jnp.float32)


# --- shapes that would broadcast to something else, and errors that say what to pass


def misfits():
    """Calls with an argument that does not fit, and what the error says; by name."""
    r, q, a, row, square = jnp.ones(3), jnp.ones((3, 2)), jnp.zeros(3, jnp.int32), jnp.ones((3, 4)), jnp.ones((3, 3))
    rlax, stoix, triton = compat.rlax, compat.stoix, compat.rl_triton
    one = jnp.ones((1, 2))
    leaky, leaky_advantage = rlax.leaky_vtrace, rlax.leaky_vtrace_td_error_and_advantage
    vtrace = lambda last: triton.compute_vtrace(row, row, row, row, row, row, last_value=last)
    td_errors = lambda l: rlax.importance_corrected_td_errors(r, r, r, l, jnp.ones(4))
    retrace = lambda a_tm1, a_t: rlax.retrace(q, q, a_tm1, a_t, r, r, q, r, 0.9)
    discounted = lambda v, **kwargs: stoix.batch_discounted_returns(square, square, v, **kwargs)
    return {
        "brax one": (lambda: compat.brax.compute_gae(*[row.T] * 4, r[:1]), "compute_gae: bootstrap_value", "(1,)"),
        "brax column": (lambda: compat.brax.compute_gae(*[jnp.ones((2, 3, 3))] * 4, r), "bootstrap_value", "(3,)"),
        "triton one": (lambda: vtrace(r[:1]), "compute_vtrace: last_value", "(1,)"),
        "triton gae": (lambda: triton.compute_gae(row, row, row, last_value=r[:1]), "compute_gae: last_value", "(1,)"),
        "alpha_": (lambda: leaky(r, r, r, r, r, r[:, None]), "leaky_vtrace: alpha_", "(3, 1)"),
        "alpha": (lambda: leaky_advantage(r, r, r, r, r, r[:, None]), "advantage: alpha", "(3, 1)"),
        "clip": (lambda: leaky(r, r, r, r, r, 1.0, 1.0, r[:, None]), "clip_rho_threshold", "(3, 1)"),
        "clip pg": (
            lambda: rlax.vtrace_td_error_and_advantage(r, r, r, r, r, clip_pg_rho_threshold=r[:, None]),
            "clip_pg_rho_threshold",
            "(3, 1)",
        ),
        "leaky lambda": (lambda: leaky(r, r, r, r, r, 1.0, r[:2]), "leaky_vtrace: lambda_", "(2,)"),
        "stoix row": (lambda: discounted(r), "batch_discounted_returns: v_t", "(3,)"),
        "stoix time": (lambda: discounted(r, time_major=True), "batch_discounted_returns: v_t", "(3,)"),
        "stoix shape": (lambda: discounted(square[:2]), "batch_discounted_returns: v_t", "(2, 3)"),
        "stoix q": (
            lambda: stoix.batch_q_lambda(square, square, jnp.ones((1, 3, 2)), 0.5), "batch_q_lambda: q_t", "(1, 3, 2)"
        ),
        "stoix q_and_v": (
            lambda: stoix.batch_general_off_policy_returns_from_q_and_v(one, square, square, square, one),
            "batch_general_off_policy_returns_from_q_and_v: q_t",
            "(1, 2)",
        ),
        "stoix retrace": (
            lambda: stoix.batch_retrace_continuous(square, one, square, square, square, one, 0.5),
            "batch_retrace_continuous: q_t",
            "(1, 2)",
        ),
        "errors lambda": (lambda: td_errors(r[:2]), "importance_corrected_td_errors: lambda_", "(2,)"),
        "retrace lambda": (
            lambda: rlax.retrace_continuous(r, r[:2], r, r, r, r[:2], r), "retrace_continuous: lambda_", "(3,)"
        ),
        "short actions": (lambda: retrace(a, a[:2]), "retrace: a_t", "(2,)"),
        "float actions": (lambda: retrace(a + 0.5, a), "retrace: a_tm1", "float32"),
        "sarsa": (lambda: rlax.sarsa_lambda(q, a, r, r, q, a + 0.5, 0.9), "sarsa_lambda: a_t", "float32"),
        "triton actions": (
            lambda: triton.compute_retrace(*[jnp.ones((3, 4, 2)), row, row, jnp.ones((3, 4, 2))], *[row] * 4, 0.9),
            "compute_retrace: actions",
            "float32",
        ),
    }  # fmt: skip


@pytest.mark.parametrize("name", misfits())
def test_misfits_are_refused(name):
    call, argument, got = misfits()[name]
    with pytest.raises(
        TypeError if got == "float32" else ValueError, match=f"{argument} has .*{re.escape(got)}.*; pass "
    ):
        call()


@pytest.mark.parametrize("flag", [np.int64(2**32), np.float64(1e-300)], ids=["low half 0", "tiny"])
def test_flags_of_the_host_keep_all_their_bits(flag):
    """Without x64 JAX would keep of these only what is 0."""
    x, rlax, triton = jnp.ones((3, 4)), compat.rlax, compat.rl_triton
    q, actions = jnp.ones((3, 4, 2)), jnp.zeros((3, 4), jnp.int32)
    none = jnp.zeros((3, 4))
    for call in (
        lambda flags: compat.brax.compute_gae(flags, none, x, x, x[0], 0.9, 0.9),
        lambda flags: compat.brax.compute_gae(none, flags, x, x, x[0], 0.9, 0.9),
        lambda flags: triton.compute_gae(x, x, none, flags, bootstrap_values=2 * x),
        lambda flags: triton.compute_vtrace(x, x, x, x, none, flags, bootstrap_values=2 * x),
        lambda flags: triton.compute_retrace(q, x, x, q, actions, x, flags, none, 0.9),
        lambda flags: triton.compute_lambda_returns(x, x, flags, None, 0.9, 0.9),
        lambda flags: triton.compute_lambda_returns(x, x, none, flags, 0.9, 0.9, 2 * x),
        lambda flags: rlax.vtrace(*[x[0]] * 5, sample_mask=flags[1]),
    ):
        flags = np.zeros((3, 4), flag.dtype)
        flags[1, 1] = flag
        chex.assert_trees_all_equal(call(flags), call(flags != 0))
        assert any(np.any(a != b) for a, b in zip(jax.tree.leaves(call(flags)), jax.tree.leaves(call(flags * 0))))


def test_a_list_of_lambdas_is_an_array():
    r = jnp.ones(2)
    errors = functools.partial(compat.rlax.importance_corrected_td_errors, r, r, r, values=jnp.ones(3))
    close(errors(lambda_=[0.5, 0.2]), errors(lambda_=jnp.array([0.5, 0.2])))


# --- NaN behind the end of an episode, where (1 - done) * nan is NaN


HYPERBOLIC = types.SimpleNamespace(apply=jnp.arcsinh, apply_inv=jnp.sinh)


def behind_the_end():
    """Calls whose value behind step 1, which ends an episode, is `junk`; by name."""
    r, v, g = jnp.ones(4), jnp.full(4, 0.5), jnp.array([0.9, 0.0, 0.9, 0.9])
    done, none, rho = jnp.array([0.0, 1.0, 0.0, 0.0]), jnp.zeros(4), jnp.array([0.5, 2.0, 1.0, 0.7])
    row, a, q = (lambda x: x[None]), jnp.zeros(4, jnp.int32), jnp.full((4, 2), 0.5)
    rlax, stoix, triton = compat.rlax, compat.stoix, compat.rl_triton
    at = lambda x, junk: x.at[1].set(junk)
    live = {"stop_target_gradients": False}
    return {
        "rlax.retrace_probabilities": lambda x: rlax.retrace(
            q, q, a, a, r, g, at(q, x), at(v, x), at(v, x), 0.0, **live
        ),
        "rlax.retrace_continuous": lambda x: rlax.retrace_continuous(
            v, at(v, x)[:3], at(v, x), r, g, at(v, x)[:3], at(v, x)[:3], **live
        ),
        "rlax.off_policy": lambda x: rlax.general_off_policy_returns_from_action_values(
            at(q, x), a, r, g, at(v, x), at(q, x)
        ),
        "rlax.transformed_retrace": lambda x: rlax.transformed_retrace(
            q, at(q, x), a, a, r, g, at(q, x), at(v, x), at(v, x), **live
        ),
        "rlax.transformed_q_lambda": lambda x: rlax.transformed_q_lambda(q, a, r, g, at(q, x), 0.5, **live),
        "rlax.transformed_lambda_returns": lambda x: rlax.transformed_lambda_returns(HYPERBOLIC, r, g, at(v, x), 0.5),
        "rlax.transformed_n_step": lambda x: rlax.transformed_n_step_returns(HYPERBOLIC, r, g, at(v, x), 2),
        "rlax.transformed_off_policy": lambda x: rlax.transformed_general_off_policy_returns_from_action_values(
            HYPERBOLIC, at(q, x), a, r, g, v, at(q, x)
        ),
        "rlax.transformed_n_step_q": lambda x: rlax.transformed_n_step_q_learning(q, a, at(q, x), a, r, g, 2, **live),
        "rlax.lambda_returns": lambda x: rlax.lambda_returns(r, g, at(v, x), 0.5),
        "rlax.n_step": lambda x: rlax.n_step_bootstrapped_returns(r, g, at(v, x), 2, 0.5),
        "rlax.td_lambda": lambda x: rlax.td_lambda(v, r, g, at(v, x), 0.5, stop_target_gradients=False),
        "rlax.q_lambda": lambda x: rlax.q_lambda(q, a, r, g, at(q, x), 0.5, stop_target_gradients=False),
        "rlax.retrace": lambda x: rlax.retrace(q, at(q, x), a, a, r, g, q, v, 0.9, stop_target_gradients=False),
        "rlax.vtrace": lambda x: rlax.vtrace_td_error_and_advantage(
            v, at(v, x), r, g, rho, stop_target_gradients=False
        ),
        "rlax.leaky_vtrace": lambda x: rlax.leaky_vtrace(v, at(v, x), r, g, rho, 0.5, stop_target_gradients=False),
        "rlax.masked": lambda x: rlax.vtrace(
            v, at(v, x), at(r, x), g + 0.5, at(rho, x), stop_target_gradients=False, sample_mask=done == 0
        ),
        "stoix.gae": lambda x: stoix.batch_truncated_generalized_advantage_estimation(
            row(r), row(g), 0.5, v_tm1=row(v), v_t=row(at(v, x))
        ),
        "stoix.lambda_returns": lambda x: stoix.batch_lambda_returns(row(r), row(g), row(at(v, x)), 0.5),
        "purejaxrl": lambda x: compat.purejaxrl.calculate_gae(
            types.SimpleNamespace(done=done[:2], value=v[:2], reward=r[:2]), jnp.asarray(x), 0.9, 0.5
        ),
        "brax": lambda x: compat.brax.compute_gae(none[:2], done[:2], r[:2], v[:2], jnp.asarray(x), 0.5),
        "tunix": lambda x: compat.tunix.compute_gae_advantages(row(r), row(at(v, x)), row(1 - done), 0.9, 0.5),
        "rl_triton.gae": lambda x: triton.compute_gae(row(r[:2]), row(v[:2]), row(done[:2]), last_value=row(x)),
        "rl_triton.truncated": lambda x: triton.compute_gae(
            row(r), row(v.at[2].set(x)), row(none), row(done), bootstrap_values=row(done)
        )[:, :2],
        "rl_triton.vtrace": lambda x: triton.compute_vtrace(
            row(none[:2]), row(none[:2]), row(v[:2]), row(r[:2]), row(done[:2]), last_value=row(x)
        ),
        "rl_triton.retrace": lambda x: triton.compute_retrace(
            row(q), row(v), row(v), row(at(q, x)), row(a), row(r), row(done), row(none), 0.9
        ),
        "rl_triton.lambda_returns": lambda x: triton.compute_lambda_returns(
            row(r), row(at(v, x)), row(done), bootstrap_values=row(v)
        ),
    }  # fmt: skip


@pytest.mark.parametrize("junk", [np.nan, np.inf])
@pytest.mark.parametrize("name", behind_the_end())
def test_what_is_behind_the_end_is_not_read(name, junk):
    call = lambda x: jax.tree.leaves(behind_the_end()[name](jnp.asarray(x)))
    for got, expected in zip(call(junk), call(3.0), strict=True):
        np.testing.assert_array_equal(got, expected)
    gradient = jax.grad(lambda x: sum(jnp.sum(out) for out in call(x)))(float(junk))
    assert gradient == 0


@pytest.mark.parametrize("name", ["retrace", "transformed_retrace"])
def test_probabilities_behind_the_end_send_no_nan_to_lambda(name):
    q, r, a = jnp.ones((3, 2)), jnp.ones(3), jnp.zeros(3, jnp.int32)
    pi, mu, g = q.at[1].set(np.nan), r.at[1].set(np.nan), jnp.array([0.9, 0.0, 0.9])
    function = functools.partial(getattr(compat.rlax, name), q, q, a, a, r, g, stop_target_gradients=False)
    gradients = jax.grad(lambda *x: jnp.sum(function(*x)), (0, 1, 2))(pi, mu, 0.5)
    assert all(np.isfinite(x).all() for x in gradients)


def test_errors_name_the_arguments_of_the_function_that_was_called():
    x, wide = jnp.ones((3, 2)), jnp.ones((3, 5))
    batch = types.SimpleNamespace(done=x, value=x, reward=x)
    values = dict(values=x[:, 0], v_tm1=x[:, 0])
    for call, kind, text in (
        (lambda: compat.brax.compute_gae(x, x, x, None, 1.0), TypeError, "compute_gae: values is required"),
        (lambda: compat.brax.compute_gae(wide, x, x, x, 1.0), ValueError, "compute_gae: truncation has shape (3, 5)"),
        (
            lambda: compat.brax.compute_gae(x, x, x, x, jnp.ones(3)),
            ValueError,
            "compute_gae: bootstrap_value has shape",
        ),
        (
            lambda: compat.purejaxrl.calculate_gae(batch, jnp.ones(4), 0.9, 0.9),
            ValueError,
            "calculate_gae: last_val has",
        ),
        (
            lambda: compat.rlax.lambda_returns(x[:, 0], None, x[:, 0], 0.9),
            TypeError,
            "lambda_returns: discount_t is required",
        ),
        (
            lambda: compat.stoix.batch_n_step_bootstrapped_returns(x, x, x, 2, lambda_t="0.9"),
            TypeError,
            "batch_n_step_bootstrapped_returns: lambda_t must be an array; got str",
        ),
        (
            lambda: compat.rlax.discounted_returns(x[:, 0], x[:, 0], None),
            TypeError,
            "discounted_returns: v_t is required",
        ),
        (
            lambda: compat.rl_triton.compute_gae(x, x, x * 1j),
            TypeError,
            "terminated must be real numbers or flags",
        ),
        (
            lambda: compat.stoix.batch_truncated_generalized_advantage_estimation(x, x, 0.9, **values),
            ValueError,
            "got values and v_tm1 or v_t",
        ),
    ):
        with pytest.raises(kind, match=re.escape(text)):
            call()
