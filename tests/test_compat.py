"""The compat modules against float64 loops of what the libraries compute; rlax has a file of its own."""

import doctest
import functools
import importlib
import inspect
import pkgutil
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import reference
from compat_inputs import B, T, rlax_arguments, window
from helpers import close
from rltriton_jax import compat


@pytest.mark.parametrize("module", [m.name for m in pkgutil.walk_packages(compat.__path__, f"{compat.__name__}.")])
def test_examples_run(module):
    assert not doctest.testmod(importlib.import_module(module)).failed


def backwards(x):
    return range(len(x) - 1, -1, -1)


def brax_loop(truncation, termination, rewards, values, bootstrap, lambda_, discount):
    following = np.concatenate([values[1:], bootstrap[None]])
    keep, alive = 1 - truncation, 1 - termination
    vs, a = np.zeros_like(values), np.zeros_like(bootstrap)
    for t in backwards(rewards):
        delta = keep[t] * (rewards[t] + discount * alive[t] * following[t] - values[t])
        a = delta + discount * alive[t] * keep[t] * lambda_ * a
        vs[t] = values[t] + a
    following = np.concatenate([vs[1:], bootstrap[None]])
    return vs, keep * (rewards + discount * alive * following - values)


def gae_loop(rewards, discounts, lambdas, values, next_values, cut):
    a, out = np.zeros_like(rewards[0]), np.zeros_like(rewards)
    for t in backwards(rewards):
        a = rewards[t] + discounts[t] * next_values[t] - values[t] + discounts[t] * lambdas[t] * (1 - cut[t]) * a
        out[t] = a
    return out


def tunix_loop(rewards, values, mask, gamma, lambda_):
    a = following = np.zeros(len(rewards))
    advantages = np.zeros_like(rewards)
    for t in backwards(rewards[0]):
        now = rewards[:, t] + gamma * following - values[:, t] + gamma * lambda_ * a
        a, following = np.where(mask[:, t], now, a), np.where(mask[:, t], values[:, t], following)
        advantages[:, t] = a
    live = advantages[mask != 0]
    return (advantages - live.mean()) / np.sqrt(live.var(ddof=1) + 1e-8), advantages + values


def test_brax(x64):
    r, v, _, terminated, truncated = window()
    args = (truncated, terminated, r, v, v[0] + 1, 0.8, 0.9)
    expected = brax_loop(*args)
    close(compat.brax.compute_gae(*args), expected)
    close(jax.jit(compat.brax.compute_gae)(*args), expected)
    mapped = jax.vmap(compat.brax.compute_gae, (1, 1, 1, 1, 0, None, None), 1)
    close(mapped(*args), expected)
    loss = lambda r, v: sum(x.sum() for x in compat.brax.compute_gae(truncated, terminated, r, v, v[0]))
    assert not any(np.any(x) for x in jax.grad(loss, (0, 1))(r, v))
    parameters = inspect.signature(compat.brax.compute_gae).parameters
    assert (parameters["lambda_"].default, parameters["discount"].default) == (1.0, 0.99)


@pytest.mark.parametrize("dtype", [bool, np.float32])
def test_purejaxrl(dtype, x64):
    r, v, _, done, _ = window(truncations=False)
    batch = types.SimpleNamespace(reward=jnp.asarray(r), value=jnp.asarray(v), done=jnp.asarray(done, dtype))
    last, alive = v[0] + 1, 1 - done
    following = np.concatenate([v[1:], last[None]])
    a = gae_loop(r, 0.9 * alive, np.full_like(r, 0.8), v, following, done)
    close(compat.purejaxrl.calculate_gae(batch, last, 0.9, 0.8), (a, a + v))
    # with flags that come with the observation, the same steps end their episodes one row later
    shifted = types.SimpleNamespace(
        reward=batch.reward, value=batch.value, done=jnp.concatenate([jnp.zeros_like(batch.done[:1]), batch.done[:-1]])
    )
    close(compat.purejaxrl.calculate_gae(shifted, last, 0.9, 0.8, batch.done[-1]), (a, a + v))


def test_tunix(x64):
    r, v, _, dead, _ = (x.T for x in window())
    mask = (1 - dead).astype(np.int32)
    got = compat.tunix.compute_gae_advantages(r, v, mask, 0.9, 0.8)
    for ours, theirs in zip(got, tunix_loop(r, v, mask, 0.9, 0.8)):
        close(ours, np.where(mask, theirs, 0.0))
    close(jax.jit(compat.tunix.compute_gae_advantages)(r, v, mask, 0.9, 0.8), got)
    close(compat.tunix.compute_mc_returns(r, 0.9), reference.discounted_returns(r, discount=0.9, time_axis=-1))


def test_tunix_with_a_single_live_token():
    """The sample variance of one number is 0 / 0 there."""
    got = compat.tunix.compute_gae_advantages(jnp.ones((1, 3)), jnp.zeros((1, 3)), jnp.array([[0, 1, 0]]), 0.9, 0.8)
    np.testing.assert_array_equal(got, ([[0, 0, 0]], [[0, 1, 0]]))


# --- Stoix


@pytest.mark.parametrize("time_major", [True, False])
@pytest.mark.parametrize("per_step", [True, False])
def test_stoix_advantages(time_major, per_step, x64):
    r, v, following, terminated, truncated = window()
    g, l = 0.9 * (1 - terminated), np.linspace(0.5, 1, T * B).reshape(T, B) if per_step else np.full((T, B), 0.8)
    a = gae_loop(r, g, l, v, following, truncated)
    lay = lambda x: x if time_major else np.swapaxes(x, 0, 1)
    gae = functools.partial(compat.stoix.batch_truncated_generalized_advantage_estimation, time_major=time_major)
    mixing = lay(l) if per_step else 0.8
    args = (lay(r), lay(g), mixing)
    close(gae(*args, v_tm1=lay(v), v_t=lay(following), truncation_t=lay(truncated)), (lay(a), lay(a + v)))
    values = np.concatenate([v, following[-1:]])
    plain = gae_loop(r, g, l, v, values[1:], 0 * r)
    close(gae(*args, lay(values)), (lay(plain), lay(plain + v)))
    scaled = (plain - plain.mean()) / np.sqrt(plain.var() + 1e-5)
    close(gae(*args, lay(values), standardize_advantages=True), (lay(scaled), lay(plain + v)))
    for stop in (False, True):
        loss = lambda r, stop: sum(map(jnp.sum, gae(r, *args[1:], lay(values), stop_target_gradients=stop)))
        assert np.any(jax.grad(loss)(args[0], stop)) != stop


@pytest.mark.parametrize("time_major", [True, False])
@pytest.mark.parametrize("per_step", [True, False])
def test_stoix_returns(time_major, per_step, x64):
    r, _, following, terminated, _ = window()
    lay = lambda x: x if time_major else np.swapaxes(x, 0, 1)
    r, g, v = lay(r), lay(0.9 * (1 - terminated)), lay(following)
    l = np.linspace(0.5, 1, T * B).reshape(r.shape) if per_step else 0.8
    shared = dict(discount=g, time_axis=0 if time_major else 1)
    returns = reference.lambda_returns(r, next_values=v, lambda_=l, **shared)
    close(compat.stoix.batch_lambda_returns(r, g, v, l, time_major=time_major), returns)
    q = np.stack([v - 1, v, v - 0.5], -1)
    close(compat.stoix.batch_q_lambda(r, g, q, l, time_major=time_major), returns)
    last = np.take(v, -1, shared["time_axis"])
    returns = reference.discounted_returns(r, bootstrap_value=last, **shared)
    close(compat.stoix.batch_discounted_returns(r, g, v, time_major=time_major), returns)
    returns = reference.discounted_returns(r, bootstrap_value=2.0, **shared)
    close(compat.stoix.batch_discounted_returns(r, g, 2.0, time_major=time_major), returns)
    if not time_major:
        returns = reference.n_step_returns(r, next_values=v, n=2, lambda_=l, **shared)
        close(compat.stoix.batch_n_step_bootstrapped_returns(r, g, v, 2, l), returns)


def test_stoix_off_policy(x64):
    """Batch-major, and row by row what the functions of one trajectory give."""
    of = lambda name: {k: np.moveaxis(np.asarray(v), 1, 0) for k, v in rlax_arguments(name, per_step=True).items()}
    for name, ours in (
        ("general_off_policy_returns_from_q_and_v", compat.stoix.batch_general_off_policy_returns_from_q_and_v),
        ("retrace_continuous", compat.stoix.batch_retrace_continuous),
    ):
        kwargs = of(name)
        one = getattr(compat.rlax, name)
        close(ours(**kwargs), np.stack([one(**{k: v[b] for k, v in kwargs.items()}) for b in range(B)]))
    kwargs = {k: v[0] for k, v in of("importance_corrected_td_errors").items()}
    r, g, rho, l, v = (kwargs[k] for k in ("r_t", "discount_t", "rho_tm1", "lambda_", "values"))
    cut = np.array([0.0, 1.0, 0.0, 0.0, 1.0, 0.0])
    for truncation in (None, cut):
        stops = np.zeros(T) if truncation is None else cut
        a = gae_loop(r, g, l * np.append(rho[1:], 1), v[:-1], v[1:], stops)
        close(compat.stoix.importance_corrected_td_errors(**kwargs, truncation_t=truncation), rho * a)


@pytest.mark.parametrize(
    "name, stops",
    [
        ("batch_truncated_generalized_advantage_estimation", False),
        ("batch_n_step_bootstrapped_returns", True),
        ("batch_general_off_policy_returns_from_q_and_v", False),
        ("batch_retrace_continuous", True),
        ("batch_lambda_returns", False),
        ("batch_discounted_returns", False),
        ("importance_corrected_td_errors", False),
        ("batch_q_lambda", True),
    ],
)
def test_stoix_stop_gradient_defaults(name, stops):
    assert inspect.signature(getattr(compat.stoix, name)).parameters["stop_target_gradients"].default is stops


def test_stoix_array_lambda_of_a_square_batch(x64):
    """Stoix transposes everything but lambda there, which shows only where B = T does not make it an error."""
    r, g, v, l = (np.random.default_rng(i).uniform(0.2, 1, (4, 4)) for i in range(4))
    for name in ("batch_lambda_returns", "batch_q_lambda"):
        function = getattr(compat.stoix, name)
        third = v[..., None] if name == "batch_q_lambda" else v
        time_major = function(r.T, g.T, np.swapaxes(third, 0, 1), l.T, time_major=True)
        close(function(r, g, third, l), time_major.T)
    close(compat.stoix.batch_n_step_bootstrapped_returns(r, g, v, 9, l), compat.stoix.batch_lambda_returns(r, g, v, l))


def test_stoix_errors():
    x = jnp.zeros((2, 5))
    gae = compat.stoix.batch_truncated_generalized_advantage_estimation
    with pytest.raises(ValueError, match="neither values nor both"):
        gae(x, x, 0.9, v_tm1=x)
    with pytest.raises(ValueError, match="true next states"):
        gae(x, x, 0.9, jnp.zeros((2, 6)), truncation_t=x)
    with pytest.raises(ValueError, match="batch_lambda_returns: v_t has shape"):
        compat.stoix.batch_lambda_returns(x, x, x[:, :-1])


# --- rl-triton


def rl_triton_inputs():
    r, v, following, terminated, truncated = (x.T for x in window())
    bootstrap = np.where(truncated, following, 0.0)
    bootstrap[:, -1] = following[:, -1]
    after = np.append(v[:, 1:], following[:, -1:], 1)
    return r, v, terminated, truncated, bootstrap, np.where(truncated, following, after)


def test_rl_triton_advantages(x64):
    r, v, terminated, truncated, bootstrap, after = rl_triton_inputs()
    rng = np.random.default_rng(1)
    log_pi, log_mu = -rng.random((B, T)), -rng.random((B, T))
    shared = dict(discount=0.9, terminated=terminated, time_axis=1)
    cut = dict(shared, next_values=after, truncated=truncated)
    ours = compat.rl_triton
    got = ours.compute_gae(r, v, terminated, truncated, 0.9, 0.8, bootstrap)
    close(got, reference.gae(r, v, lambda_=0.8, **cut)[0])
    last = bootstrap[:, -1]
    expected = reference.gae(r, v, lambda_=0.8, bootstrap_value=last, **shared)[0]
    close(ours.compute_gae(r, v, terminated, None, 0.9, 0.8, last_value=last), expected)
    close(ours.compute_gae(r, v, terminated, None, 0.9, 0.8, bootstrap), expected)
    # lambda 1 gives the return less the value, which a carry that begins with the bootstrap does not
    returns = ours.compute_discounted_returns(r, terminated, truncated, 0.9, bootstrap)
    close(ours.compute_gae(r, v, terminated, truncated, 0.9, 1.0, bootstrap), returns - v)
    got = ours.compute_vtrace(log_pi, log_mu, v, r, terminated, truncated, 0.9, 0.7, 0.8, bootstrap)
    clips = dict(clip_rho=0.7, clip_c=0.8, clip_pg_rho=0.7)
    close(got, reference.vtrace(r, v, log_rhos=log_pi - log_mu, **clips, **cut))
    with pytest.raises(ValueError, match="pass one of them"):
        ours.compute_vtrace(r, r, v, r, terminated, bootstrap_values=bootstrap, last_value=last)
    with pytest.raises(ValueError, match="last_value does not go with truncateds"):
        ours.compute_gae(r, v, terminated, truncated, last_value=last)


def test_rl_triton_returns(x64):
    r, _, terminated, truncated, bootstrap, after = rl_triton_inputs()
    done, alive, ours = terminated + truncated, 1 - terminated - truncated, compat.rl_triton
    for l in (0.8, 1.0):
        g, expected = bootstrap[:, -1], np.zeros_like(r)
        for t in backwards(r[0]):
            continued = alive[:, t] * ((1 - l) * after[:, t] + l * g) + truncated[:, t] * bootstrap[:, t]
            g = expected[:, t] = r[:, t] + 0.9 * continued
        close(ours.compute_lambda_returns(r, after, terminated, truncated, 0.9, l, bootstrap), expected)
    close(ours.compute_discounted_returns(r, terminated, truncated, 0.9, bootstrap), expected)
    seed = np.arange(1.0, B + 1)
    z = c = seed
    traces, sums, since = np.zeros_like(r), np.zeros_like(r), np.zeros_like(r)
    s = seed
    for t in range(T):
        before = 1 - done[:, t - 1] if t else 1.0
        traces[:, t] = z = r[:, t] + 0.9 * 0.8 * before * z
        sums[:, t] = c = r[:, t] + before * c
        since[:, t] = s = r[:, t] + (1 - done[:, t]) * s
    close(ours.compute_eligibility_traces(r, done, 0.9, 0.8, seed), traces)
    close(ours.compute_episodic_prefix_sum(r, done, seed), sums)
    close(ours.compute_episodic_prefix_sum(r, done, seed, boundary="starts_at"), since)
    with pytest.raises(ValueError, match="boundary is 'at'"):
        ours.compute_episodic_prefix_sum(r, done, boundary="at")


def test_rl_triton_retrace(x64):
    """The advantage of a truncated or last step bootstraps from its own next state, not from the next episode."""
    r, q, terminated, truncated, _, _ = rl_triton_inputs()
    a = rlax_arguments("retrace")
    pi, following_pi, next_q = (np.swapaxes(a[k], 0, 1) for k in ("pi_t", "pi_t", "q_t"))
    following_pi = np.roll(following_pi, 1, -1)
    actions, mu = a["a_t"].T, a["mu_t"].T
    rho = np.take_along_axis(pi, actions[..., None], -1)[..., 0] / mu
    args = (pi, mu, q, next_q, actions, r, terminated, truncated, 0.9, 0.8, 0.7, 0.6)
    shared = dict(rhos=rho, discount=0.9, lambda_=0.8, clip_c=0.7, clip_rho=0.6, time_axis=1)
    shared |= dict(terminated=terminated, truncated=truncated)
    for weights, keyword in ((pi, {}), (following_pi, {"next_action_probs_target": following_pi})):
        expected = reference.retrace(r, q, next_expected_q=(weights * next_q).sum(-1), **shared)
        close(compat.rl_triton.compute_retrace(*args, **keyword), expected)
    # what one row gives is what its episodes give by themselves
    _, together = compat.rl_triton.compute_retrace(*args)
    cuts = [0, *(np.flatnonzero(terminated[0] + truncated[0]) + 1), T]
    for first, end in zip(cuts, cuts[1:]):
        if first < end:
            one = [x[:1, first:end] if np.ndim(x) else x for x in args]
            close(compat.rl_triton.compute_retrace(*one)[1], together[:1, first:end])


@pytest.mark.parametrize(
    "lambda_, next_value, bootstrap, ends, last",
    [
        (1.0, np.nan, 3.0, {}, 3.0),
        (0.0, 3.0, np.nan, {}, 3.0),
        (0.5, np.nan, np.nan, {"terminateds": 1.0}, 0.0),
        (0.5, np.nan, 3.0, {"truncateds": 1.0}, 3.0),
    ],
)
def test_rl_triton_lambda_returns_read_what_counts(lambda_, next_value, bootstrap, ends, last):
    """NaN in the last column, where it weighs 0 or an episode ends."""
    row = lambda x: jnp.array([[0.0, x]])
    flags = {k: row(ends.get(k, 0.0)) for k in ("terminateds", "truncateds")}
    call = lambda l, following, boundary: compat.rl_triton.compute_lambda_returns(
        jnp.ones((1, 2)), row(following), **flags, gamma=0.5, lambda_=l, bootstrap_values=row(boundary)
    )
    end = 1 + 0.5 * last
    np.testing.assert_allclose(call(lambda_, next_value, bootstrap), [[1 + 0.5 * lambda_ * end, end]])
    gradients = jax.grad(lambda *x: jnp.sum(call(*x)), (0, 1, 2))(lambda_, next_value, bootstrap)
    assert np.isfinite(gradients).all()
