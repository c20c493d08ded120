"""Bad input to the LLM functions: the function, the argument, what came and what to pass."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rltriton_jax import llm

S, IDS = jnp.array([1.0, 0.0, 0.5]), jnp.array([0, 0, 1])
TURNS, TURN_IDS = jnp.ones((3, 2)), jnp.zeros((3, 2), int)
MASK = jnp.ones((3, 2))
NAN = float("nan")
BAD = {
    "group_advantages": [
        (ValueError, "scores has shape (3, 2)", lambda f: f(TURNS, IDS)),
        (TypeError, "scores must be real numbers or flags; got dtype complex64", lambda f: f(S + 1j, IDS)),
        (TypeError, "scores must be an array; got str", lambda f: f("abc", IDS)),
        (ValueError, f"scores holds {2**40} and 0, which int32 cannot", lambda f: f(np.array([0, 1, 2**40]), IDS)),
        (ValueError, "neither of group_ids and group_size", lambda f: f(S)),
        (ValueError, "both of group_ids and group_size", lambda f: f(S, IDS, group_size=3)),
        (ValueError, "group_size is 2, which does not divide the 3 rows", lambda f: f(S, group_size=2)),
        (ValueError, "group_size is 0", lambda f: f(S, group_size=0)),
        (TypeError, "group_size is float", lambda f: f(S, group_size=3.0)),
        (TypeError, "group_ids has dtype float32", lambda f: f(S, S)),
        (TypeError, "group_ids has dtype bool", lambda f: f(S, S > 0)),
        (ValueError, "group_ids has shape (2,); pass shape (3,)", lambda f: f(S, IDS[:2])),
        (ValueError, "group_ids holds -2", lambda f: f(S, jnp.array([0, -2, -1]))),
        (ValueError, f"group_ids holds {2**40}", lambda f: f(S, np.array([0, 1, 2**40]))),
        (ValueError, "mask has shape (3, 1)", lambda f: f(S, IDS, mask=S[:, None])),
        (ValueError, "baseline is 'median'", lambda f: f(S, IDS, baseline="median")),
        (ValueError, "scale is 'std'", lambda f: f(S, IDS, scale="std")),
        (ValueError, "singleton is 'nan'", lambda f: f(S, IDS, singleton="nan")),
        (ValueError, "ddof is 2", lambda f: f(S, IDS, ddof=2)),
        (TypeError, "ddof is float", lambda f: f(S, IDS, ddof=0.5)),
        (ValueError, "eps is -1.0", lambda f: f(S, IDS, eps=-1.0)),
        (ValueError, "eps has shape (3,)", lambda f: f(S, IDS, eps=S)),
        (ValueError, "needs lengths", lambda f: f(S, IDS, baseline="length_weighted")),
        (ValueError, "lengths given with baseline='mean'", lambda f: f(S, IDS, lengths=S)),
        (ValueError, "lengths holds negative", lambda f: f(S, IDS, baseline="length_weighted", lengths=-S)),
        (ValueError, "lengths has shape (2,)", lambda f: f(S, IDS, baseline="length_weighted", lengths=S[:2])),
        (ValueError, "scores of shape (3,) holds 1 NaN or inf", lambda f: f(S.at[1].set(NAN), IDS)),
        (ValueError, "the first at (0,)", lambda f: f(S / 0, IDS)),
    ],
    "step_group_advantages": [
        (ValueError, "scores has shape (3,)", lambda f: f(S, IDS, IDS)),
        (ValueError, "state_ids has shape (3,)", lambda f: f(TURNS, IDS, IDS)),
        (TypeError, "state_ids has dtype float32", lambda f: f(TURNS, TURNS, IDS)),
        (ValueError, "group_ids has shape (3, 2)", lambda f: f(TURNS, TURN_IDS, TURN_IDS)),
        (ValueError, "baseline is 'length_weighted'", lambda f: f(TURNS, TURN_IDS, IDS, baseline="length_weighted")),
        (ValueError, "holds 6 NaN or inf", lambda f: f(TURNS * NAN, TURN_IDS, IDS)),
    ],
    "masked_whiten": [
        (ValueError, "mask has shape (3,)", lambda f: f(TURNS, S)),
        (TypeError, "mask must be real numbers or flags; got dtype complex64", lambda f: f(TURNS, MASK * 1j)),
        (TypeError, "x must be real numbers or flags; got dtype complex64", lambda f: f(TURNS * 1j, MASK)),
        (ValueError, "ddof is 3", lambda f: f(TURNS, MASK, ddof=3)),
        (ValueError, "eps is -0.5", lambda f: f(TURNS, MASK, eps=-0.5)),
    ],
    "reinforce_plus_plus": [
        (ValueError, "rewards has shape (3,)", lambda f: f(S, S)),
        (ValueError, "mask has shape (3,)", lambda f: f(TURNS, S)),
        (ValueError, "ddof is 3", lambda f: f(TURNS, MASK, ddof=3)),
        (ValueError, "eps is -1.0", lambda f: f(TURNS, MASK, eps=-1)),
        (ValueError, "discount has shape (3,)", lambda f: f(TURNS, MASK, discount=S)),
        (TypeError, "discount must be an array; got str", lambda f: f(TURNS, MASK, discount="0.9")),
        (TypeError, "discount must be numbers; got dtype bool; pass", lambda f: f(TURNS, MASK, discount=True)),
        (ValueError, "implementation is 'cuda'", lambda f: f(TURNS, MASK, implementation="cuda")),
    ],
    "place_outcome": [
        (ValueError, "mask has shape (3,), scores (3,)", lambda f: f(S, S)),
        (ValueError, "mask has shape (3, 2), scores (2,)", lambda f: f(S[:2], MASK)),
        (TypeError, "scores must be real numbers or flags; got dtype complex64", lambda f: f(S * 1j, MASK)),
        (ValueError, "mask has shape ()", lambda f: f(1.0, 1)),
    ],
    "turn_to_tokens": [
        (ValueError, "turn_values has shape (3,) and turn_ids (3, 2)", lambda f: f(S, TURN_IDS)),
        (TypeError, "turn_ids has dtype float32", lambda f: f(TURNS, MASK)),
        (ValueError, "turn_ids holds 2, but there are 2 turns", lambda f: f(TURNS, TURN_IDS + 2)),
        (ValueError, "turn_ids holds -3", lambda f: f(TURNS, TURN_IDS - 3)),
    ],
    "trace_turn_rewards": [
        (ValueError, "gold_log_probs has shape ()", lambda f: f(1.0)),
        (ValueError, "gold_log_probs has shape (3, 0)", lambda f: f(jnp.ones((3, 0)))),
        (ValueError, "turn_mask has shape (3, 2); pass shape (3, 1)", lambda f: f(-TURNS, turn_mask=MASK)),
        (ValueError, "not below eps", lambda f: f(TURNS)),
        (ValueError, "NaN or inf", lambda f: f(-TURNS / 0)),
        (ValueError, "eps has shape (3,)", lambda f: f(-TURNS, eps=S)),
        (ValueError, "eps is nan", lambda f: f(-TURNS, eps=NAN)),
        (ValueError, "eps is inf", lambda f: f(-TURNS, eps=float("inf"))),
        (ValueError, "eps is -0.5", lambda f: f(-TURNS, eps=-0.5)),
    ],
    "trace_credit": [
        (ValueError, "deltas has shape ()", lambda f: f(1.0, 1.0)),
        (ValueError, "outcome_advantage has shape (3, 2)", lambda f: f(TURNS, TURNS)),
        (ValueError, "window is -1", lambda f: f(TURNS, S, window=-1)),
        (TypeError, "window is float", lambda f: f(TURNS, S, window=2.0)),
        (ValueError, "discount is -0.5", lambda f: f(TURNS, S, discount=-0.5)),
        (ValueError, "discount has shape (3,)", lambda f: f(TURNS, S, discount=S)),
        (ValueError, "turn_mask has shape (3,)", lambda f: f(TURNS, S, turn_mask=S)),
        (ValueError, "implementation is 'cuda'", lambda f: f(TURNS, S, implementation="cuda")),
    ],
    "trace_token_advantages": [
        (ValueError, "credit has shape ()", lambda f: f(1.0, 1.0, TURN_IDS, MASK)),
        (ValueError, "outcome_advantage has shape (2,)", lambda f: f(TURNS, S[:2], TURN_IDS, MASK)),
        (ValueError, "turn_ids has shape (2, 2)", lambda f: f(TURNS, S, TURN_IDS[:2], MASK)),
        (ValueError, "mask has shape (3,)", lambda f: f(TURNS, S, TURN_IDS, S)),
        (ValueError, "turn_ids holds 5", lambda f: f(TURNS, S, TURN_IDS + 5, MASK)),
    ],
    "rollout_tree_advantages": [
        (ValueError, "rewards has shape (3,)", lambda f: f(S, IDS, IDS, IDS)),
        (ValueError, "state_ids has shape (3,)", lambda f: f(TURNS, IDS, TURN_IDS, IDS)),
        (ValueError, "action_ids has shape (3,)", lambda f: f(TURNS, TURN_IDS, IDS, IDS)),
        (ValueError, "group_ids has shape (2,)", lambda f: f(TURNS, TURN_IDS, TURN_IDS, IDS[:2])),
        (TypeError, "action_ids has dtype float32", lambda f: f(TURNS, TURN_IDS, TURNS, IDS)),
        (ValueError, "scale is 'batch'", lambda f: f(TURNS, TURN_IDS, TURN_IDS, IDS, scale="batch")),
        (ValueError, "discount has shape (2,)", lambda f: f(TURNS, TURN_IDS, TURN_IDS, IDS, discount=S[:2])),
        (ValueError, "prior_count is -1.0", lambda f: f(TURNS, TURN_IDS, TURN_IDS, IDS, prior_count=-1)),
        (ValueError, "rewards of shape (3, 2) holds 6 NaN", lambda f: f(TURNS * NAN, TURN_IDS, TURN_IDS, IDS)),
    ],
    "multi_turn_advantages": [
        (ValueError, "turn_rewards has shape (3,)", lambda f: f(S, IDS)),
        (ValueError, "group_ids has shape (3, 2)", lambda f: f(TURNS, TURN_IDS)),
        (ValueError, "turn_mask has shape (3,)", lambda f: f(TURNS, IDS, S)),
        (ValueError, "discount has shape (1, 3)", lambda f: f(TURNS, IDS, discount=S[None])),
        (ValueError, "agent_ids has shape (2,)", lambda f: f(TURNS, IDS, agent_ids=IDS[:2])),
        (
            ValueError,
            "agent_ids holds 3, but there are 3 agent_weights",
            lambda f: f(TURNS, IDS, agent_ids=IDS * 0 + 3),
        ),
        (ValueError, "agent_weights has shape ()", lambda f: f(TURNS, IDS, agent_weights=1.0)),
        (ValueError, "turn_rewards of shape (3, 2) holds", lambda f: f(TURNS.at[0, 1].set(NAN), IDS)),
    ],
    "segment_ends": [
        (ValueError, "segment_ids has shape ()", lambda f: f(jnp.array(1))),
        (TypeError, "segment_ids has dtype float32", lambda f: f(S)),
        (ValueError, "segment_ids holds -4", lambda f: f(IDS - 4)),
        (ValueError, "mask has shape (2,)", lambda f: f(IDS, S[:2])),
    ],
    "segment_starts": [(TypeError, "segment_ids has dtype float32", lambda f: f(S))],
    "state_action_ids": [
        (TypeError, "signatures[1] is str", lambda f: f([["a"], "bc"])),
        (TypeError, "signatures[0] is int", lambda f: f([3])),
        (TypeError, "signatures[0][1] is list", lambda f: f([["a", [1]]])),
        (ValueError, "turns is 1, but a rollout has 2 turns", lambda f: f([["a", "b"]], turns=1)),
        (TypeError, "turns is float", lambda f: f([["a"]], turns=1.0)),
    ],
}
ROWS = [(name, *row) for name, rows in BAD.items() for row in rows]


@pytest.mark.parametrize("name, error, words, call", ROWS, ids=[f"{name}-{words}" for name, _, words, _ in ROWS])
def test_message(name, error, words, call):
    with pytest.raises(error) as caught:
        call(getattr(llm, name))
    message = str(caught.value)
    assert message.startswith(f"{name}: ")
    assert words in message
    assert "pass" in message


def test_every_public_function_is_covered():
    functions = {
        name for name in vars(llm) if name.islower() and not name.startswith("_") and callable(getattr(llm, name))
    }
    assert functions == set(BAD)


def test_shapes_are_checked_under_jit_and_values_are_not():
    with pytest.raises(ValueError, match="group_ids has shape"):
        jax.jit(llm.group_advantages)(S, IDS[:2])
    assert jax.jit(llm.group_advantages)(S.at[0].set(NAN), IDS - 1).tolist() == [0.0, 0.0, 0.0]


def test_values_in_dead_rows_are_not_checked():
    poisoned = S.at[2].set(NAN)
    for options in ({"mask": jnp.array([1, 1, 0])}, {}):
        ids = IDS if options else IDS.at[2].set(-1)
        assert np.isfinite(llm.group_advantages(poisoned, ids, **options)).all()
    multi_turn = llm.multi_turn_advantages(TURNS.at[2].set(NAN), IDS.at[2].set(-1))
    assert np.isfinite(multi_turn).all()


def test_presets_are_frozen():
    with pytest.raises(TypeError):
        llm.GROUP_PRESETS["grpo"] = {}
    with pytest.raises(TypeError):
        llm.GROUP_PRESETS["grpo"]["eps"] = 0.0
