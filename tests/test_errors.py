"""What is refused, and that the message names the function and the argument, shows what came, and says what to pass."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rltriton_jax as rl

T, B = 5, 3
X, LONG, ROW = np.ones((T, B), np.float32), np.ones((T + 1, B), np.float32), np.ones(B, np.float32)
FLAG = np.zeros((T, B), bool)
G = dict(discount=0.9, lambda_=0.8)


def gae(**kwargs):
    return rl.gae(**{"rewards": X, "values": LONG, **G, **kwargs})


REFUSED = {
    "T rows and nothing after": (lambda: gae(values=X), ValueError, ["gae", "values", "bootstrap_value", "next_values"]),
    "T rows of a wrong batch": (lambda: gae(values=np.ones((T, B + 1))), ValueError, ["values", "(5, 4)", "(6, 3)"]),
    "an axis too many": (lambda: gae(rewards=X, values=LONG[..., None]), ValueError, ["values", "(6, 3, 1)"]),
    "an axis too few": (lambda: gae(rewards=X[..., None], values=LONG), ValueError, ["values", "(6, 3)"]),
    "T + 1 rows and a bootstrap": (lambda: gae(bootstrap_value=0.0), ValueError, ["values", "bootstrap_value"]),
    "T + 1 rows and next values": (lambda: gae(next_values=X), ValueError, ["values", "next_values"]),
    "bootstrap and next values": (lambda: gae(values=X, next_values=X, bootstrap_value=0.0), ValueError, ["bootstrap_value"]),
    "a bootstrap of a wrong shape": (lambda: gae(values=X, bootstrap_value=np.ones(B + 1)), ValueError, ["(4,)", "(3,)"]),
    "truncated without next values": (lambda: gae(truncated=FLAG), ValueError, ["truncated", "next_values"]),
    "both conventions": (lambda: gae(terminated=FLAG, episode_starts=FLAG), ValueError, ["terminated", "episode_starts"]),
    "truncated beside starts": (
        lambda: gae(values=X, next_values=X, truncated=FLAG, episode_starts=FLAG), ValueError, ["truncated", "terminated"]),
    "starts of T rows": (lambda: gae(episode_starts=FLAG), ValueError, ["episode_starts", "next_episode_start"]),
    "a lone next start": (lambda: gae(next_episode_start=True), ValueError, ["next_episode_start"]),
    "flags of a wrong shape": (lambda: gae(terminated=FLAG[:, :2]), ValueError, ["terminated", "(5, 2)"]),
    "flags of T + 1 rows": (lambda: gae(terminated=np.zeros((T + 1, B))), ValueError, ["terminated", "(6, 3)"]),
    "a discount of a wrong shape": (lambda: gae(discount=ROW), ValueError, ["discount", "(3,)"]),
    "a mask of a wrong shape": (lambda: gae(mask=ROW), ValueError, ["mask", "(3,)"]),
    "an unknown mask mode": (lambda: gae(mask_mode="drop"), ValueError, ["mask_mode", "'drop'", "skip", "reset"]),
    "an unknown implementation": (lambda: gae(implementation="cuda"), ValueError, ["implementation", "'cuda'", "triton"]),
    "an axis outside": (lambda: gae(time_axis=2), ValueError, ["time_axis=2", "(5, 3)"]),
    "an axis that is no int": (lambda: gae(time_axis=0.0), TypeError, ["time_axis"]),
    "a scalar reward": (lambda: gae(rewards=1.0), ValueError, ["rewards", "time axis"]),
    "nothing": (lambda: gae(rewards=None), TypeError, ["rewards", "None"]),
    "complex numbers": (lambda: gae(rewards=X * 1j), TypeError, ["rewards", "complex"]),
    "bools as values": (lambda: gae(values=np.zeros((T + 1, B), bool)), TypeError, ["values", "bool"]),
    "neither kind of ratio": (lambda: rl.vtrace(X, LONG, discount=0.9), ValueError, ["vtrace", "log_rhos", "rhos"]),
    "both kinds of ratio": (
        lambda: rl.vtrace(X, LONG, rhos=X, log_rhos=X, discount=0.9), ValueError, ["vtrace", "log_rhos", "rhos"]),
    "a bound per column": (
        lambda: rl.vtrace(X, LONG, rhos=X, clip_c=ROW, discount=0.9), ValueError, ["vtrace", "clip_c", "(3,)"]),
    "traces of a wrong shape": (
        lambda: rl.off_policy_returns(X, X, next_expected_q=X, traces=ROW, discount=0.9), ValueError, ["traces", "(3,)"]),
    "no values at all": (lambda: rl.lambda_returns(X, **G), ValueError, ["lambda_returns", "next_values"]),
    "n of 0": (lambda: rl.n_step_returns(X, LONG, n=0, discount=0.9), ValueError, ["n_step_returns", "n ", "0"]),
    "n of a float": (lambda: rl.n_step_returns(X, LONG, n=2.0, discount=0.9), TypeError, ["n_step_returns", "float"]),
    "n steps of a mask": (lambda: rl.n_step_returns(X, LONG, n=2, discount=0.9, mask=FLAG), ValueError, ["mask"]),
    "an initial of a wrong shape": (lambda: rl.episodic_prefix_sum(X, initial=np.ones(2)), ValueError, ["initial", "(2,)"]),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name):
    call, kind, words = REFUSED[name]
    with pytest.raises(kind) as caught:
        call()
    assert all(word in str(caught.value) for word in words), str(caught.value)


@pytest.mark.parametrize("name", REFUSED)
def test_refused_when_traced(name):
    call, kind, _ = REFUSED[name]
    with pytest.raises(kind):
        jax.jit(call)()


def test_discount_and_lambda_are_required():
    with pytest.raises(TypeError, match="discount"):
        rl.gae(X, LONG, lambda_=0.9)
    with pytest.raises(TypeError, match="lambda_"):
        rl.gae(X, LONG, discount=0.9)


@pytest.mark.skipif(jax.default_backend() == "gpu", reason="it can run there")
def test_triton_says_why_it_cannot_run():
    with pytest.raises(ValueError, match=r"implementation='triton'.*GPU.*'interpret'"):
        gae(implementation="triton")


def test_flags_of_any_real_type_are_taken():
    for dtype in (bool, np.uint8, np.int32, np.float16, np.float32, jnp.bfloat16):
        gae(terminated=jnp.asarray(FLAG, dtype), mask=jnp.ones((T, B), dtype))
