"""LLM functions under jit, vmap, grad, scan and remat: the same values, right derivatives, no NaN, no dense pairs."""

from math import prod

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rltriton_jax import llm

NAN = float("nan")
ROWS, TURNS = 6, 5
IDS = jnp.array([4, 4, 4, 9, 9, -1])
STATES = np.array([[0, 1, 0, 2, 1], [0, 2, 2, -1, -1], [1, 1, 0, 2, 0], [0, 0, 1, 2, -1], [2, 0, 1, 0, 1], [0] * 5])
ACTIONS = np.array([[0, 1, 0, 1, 0], [1, 1, 0, 0, 0], [0, 1, 0, 1, 1], [0, 0, 1, 0, 1], [1, 1, 0, 0, 0], [0] * 5])
MASK = np.array([[1, 0, 1, 1, 0], [1, 1, 0, 0, 1], [0, 0, 0, 0, 0], [1, 1, 1, 1, 1], [0, 0, 1, 1, 1], [0, 1, 1, 0, 1]])
REAL = STATES >= 0
GROUPED = np.array(IDS) >= 0
FULL = np.ones((ROWS, TURNS), bool)


def both_ends(turns):
    """Scores before and after the live turns."""
    return np.pad(turns, ((0, 0), (0, 1))) | np.pad(turns, ((0, 0), (1, 0)))


GROUPINGS = [("mean", "group"), ("leave_one_out", None), ("length_weighted", "batch"), ("none", "group")]

# Each row: the function of its floating inputs, their shapes, and which entries of the first are live.
TABLE = {
    **{
        f"group_advantages-{baseline}-{scale}": (
            lambda s, w, e, baseline=baseline, scale=scale: llm.group_advantages(
                s, IDS, baseline=baseline, scale=scale, eps=abs(e), singleton="raw",
                lengths=abs(w) if baseline == "length_weighted" else None,
            ),
            [(ROWS,), (ROWS,), ()],
            GROUPED,
        )
        for baseline, scale in GROUPINGS
    },
    "group_advantages-size": (lambda s: llm.group_advantages(s, group_size=3), [(ROWS,)], FULL[:, 0]),
    "step_group_advantages": (
        lambda s, e: llm.step_group_advantages(s, STATES, IDS, eps=abs(e)),
        [(ROWS, TURNS), ()],
        REAL & GROUPED[:, None],
    ),
    "masked_whiten": (lambda x, e: llm.masked_whiten(x, MASK, eps=abs(e)), [(ROWS, TURNS), ()], MASK != 0),
    "masked_whiten-scale": (lambda x: llm.masked_whiten(x, MASK, shift_mean=False), [(ROWS, TURNS)], MASK != 0),
    "reinforce_plus_plus": (
        lambda r, g: llm.reinforce_plus_plus(r, MASK, discount=g).advantages,
        [(ROWS, TURNS), ()],
        MASK != 0,
    ),
    "place_outcome": (lambda s: llm.place_outcome(s, MASK), [(ROWS,)], MASK.any(axis=1)),
    "turn_to_tokens": (lambda v: llm.turn_to_tokens(v, STATES), [(ROWS, 3)], FULL[:, :3]),
    "trace_turn_rewards": (
        lambda x: llm.trace_turn_rewards(-abs(x), turn_mask=MASK),
        [(ROWS, TURNS + 1)],
        both_ends(MASK != 0),
    ),
    "trace_credit": (
        lambda d, a, g, k: llm.trace_credit(d, a, discount=abs(g), terminal_scale=k, turn_mask=MASK),
        [(ROWS, TURNS), (ROWS,), (), ()],
        MASK != 0,
    ),
    "trace_token_advantages": (
        lambda c, a, w: llm.trace_token_advantages(c, a, STATES, MASK, credit_weight=w),
        [(ROWS, 3), (ROWS,), ()],
        FULL[:, :3],
    ),
    "rollout_tree_advantages": (
        lambda r, g, n: llm.rollout_tree_advantages(r, STATES, ACTIONS, IDS, discount=g, prior_count=abs(n)),
        [(ROWS, TURNS), (), ()],
        REAL & GROUPED[:, None],
    ),
    "rollout_tree_advantages-scale": (
        lambda r, e: llm.rollout_tree_advantages(r, STATES, ACTIONS, IDS, discount=0.9, scale="group", eps=abs(e)),
        [(ROWS, TURNS), ()],
        REAL & GROUPED[:, None],
    ),
    "multi_turn_advantages": (
        lambda r, g, w: llm.multi_turn_advantages(
            r, IDS, MASK, discount=g, agent_ids=jnp.array([0, 0, 1, 1, 0, 0]), agent_weights=w
        ),
        [(ROWS, TURNS), (), (2,)],
        FULL & GROUPED[:, None],
    ),
}  # fmt: skip

each = pytest.mark.parametrize("name", TABLE)


def inputs_of(name, seed=0, dtype=jnp.float32):
    rng = np.random.default_rng(seed)
    function, shapes, live = TABLE[name]
    return function, [jnp.asarray(rng.normal(0.5, 1, shape), dtype) for shape in shapes], live


def close(got, expected, tol=1e-5):
    np.testing.assert_allclose(np.asarray(got), np.asarray(expected), rtol=tol, atol=tol)


@each
def test_jit(name):
    function, inputs, _ = inputs_of(name)
    close(jax.jit(function)(*inputs), function(*inputs))


@each
def test_vmap_over_everything(name):
    function, inputs, _ = inputs_of(name)
    other = inputs_of(name, 1)[1]
    stacked = [jnp.stack([a, b], axis=-1) for a, b in zip(inputs, other)]
    both = jax.jit(jax.vmap(function, in_axes=-1, out_axes=-1))(*stacked)
    close(both[..., 0], function(*inputs))
    close(both[..., 1], function(*other))


@pytest.mark.parametrize("name", [name for name, (_, shapes, _) in TABLE.items() if shapes[-1] == ()])
def test_vmap_over_hyperparameters(name):
    function, inputs, _ = inputs_of(name)
    grid = jnp.array([0.0, 0.3, 1.0])
    got = jax.vmap(lambda value: function(*inputs[:-1], value))(grid)
    for row, value in zip(got, grid):
        close(row, function(*inputs[:-1], value))


@each
def test_gradient_is_that_of_finite_differences(name):
    with jax.enable_x64(True):
        function, inputs, _ = inputs_of(name, 2, jnp.float64)
        rng = np.random.default_rng(3)
        weight = jnp.asarray(rng.normal(size=jax.eval_shape(function, *inputs).shape))
        loss = jax.jit(lambda *x: jnp.sum(weight * function(*x)))
        gradients = jax.jit(jax.grad(loss, argnums=tuple(range(len(inputs)))))(*inputs)
        for spot, (x, gradient) in enumerate(zip(inputs, gradients)):
            direction = jnp.asarray(rng.normal(size=x.shape))
            step = 1e-6
            ahead, behind = ([*inputs[:spot], x + sign * step * direction, *inputs[spot + 1 :]] for sign in (1, -1))
            numeric = (loss(*ahead) - loss(*behind)) / (2 * step)
            close(jnp.sum(gradient * direction), numeric, 1e-6)


@each
def test_dead_entries_are_not_read(name):
    function, inputs, live = inputs_of(name)
    poisoned = [jnp.where(live, inputs[0], NAN), *inputs[1:]]
    np.testing.assert_array_equal(function(*poisoned), function(*inputs))
    gradient = jax.grad(lambda *x: jnp.sum(jnp.square(function(*x))))(*poisoned)
    assert np.isfinite(gradient).all()
    assert np.all(np.asarray(gradient)[~live] == 0)


ROW_GONE, HOLE = np.array([[1, 1], [1, 1], [0, 0]]), np.array([[1, 1], [1, 0], [0, 0]])
PAIRED = jnp.array([0, 0, -1])
LEFT_OUT = HOLE - 1
# Each row: a function of floating inputs, and for each input which of its entries are read.
UNREAD = {
    "trace_credit": (
        lambda d, a, g, k: llm.trace_credit(d, a, discount=g, terminal_scale=k, turn_mask=HOLE),
        [HOLE, HOLE[:, 0], 1, 1],
    ),
    "trace_credit-window 0": (
        lambda d, a, g, k: llm.trace_credit(d, a, discount=g, terminal_scale=k, turn_mask=HOLE, window=0),
        [HOLE * 0, HOLE[:, 0], 1, 1],
    ),
    "trace_token_advantages": (
        lambda c, a, w: llm.trace_token_advantages(c, a, np.tile([0, 1], (3, 1)), HOLE, credit_weight=w),
        [HOLE, HOLE[:, 0], 1],
    ),
    "trace_token_advantages-unknown turn": (
        jax.jit(lambda c, w: llm.trace_token_advantages(c, c[:, 0], jnp.where(HOLE != 0, 0, 7), HOLE, credit_weight=w)),
        [HOLE[:, :1], 1],
    ),
    "multi_turn_advantages": (
        lambda r, g, w: llm.multi_turn_advantages(r, PAIRED, discount=g, agent_ids=PAIRED, agent_weights=w),
        [ROW_GONE, ROW_GONE, np.array([1, 0])],
    ),
    "multi_turn_advantages-nobody": (
        lambda r, w: llm.multi_turn_advantages(r, PAIRED, turn_mask=HOLE * 0, agent_weights=w),
        [ROW_GONE, np.array([0, 0, 0])],
    ),
    "rollout_tree_advantages": (
        lambda r, g: llm.rollout_tree_advantages(r, LEFT_OUT, HOLE, PAIRED, discount=g, scale="group", eps=0.1),
        [HOLE, HOLE],
    ),
    "reinforce_plus_plus": (lambda r, g: llm.reinforce_plus_plus(r, HOLE, discount=g).advantages, [HOLE, HOLE]),
    "group_advantages": (
        lambda s, w: llm.group_advantages(s, PAIRED, baseline="length_weighted", lengths=w),
        [HOLE[:, 0], HOLE[:, 0]],
    ),
    "trace_turn_rewards": (lambda x, e: llm.trace_turn_rewards(-x, eps=e, turn_mask=HOLE[:, 1:]), [HOLE, 1]),
}  # fmt: skip


@pytest.mark.parametrize("name", UNREAD)
def test_nan_that_is_not_read_reaches_no_derivative(name):
    function, read = UNREAD[name]
    rng = np.random.default_rng(4)
    clean = [jnp.asarray(rng.uniform(0.2, 0.9, np.shape(r)), jnp.float32) for r in read]
    poisoned = [jnp.where(np.asarray(r) != 0, x, NAN) for r, x in zip(read, clean)]
    np.testing.assert_array_equal(function(*poisoned), function(*clean))
    loss = lambda *x: jnp.sum(jnp.sin(function(*x)))
    spots = tuple(range(len(read)))
    for r, got, expected in zip(read, jax.grad(loss, spots)(*poisoned), jax.grad(loss, spots)(*clean)):
        close(got, expected, 1e-6)
        assert np.all(np.asarray(got)[np.asarray(r) == 0] == 0)


@each
def test_equal_inputs_have_finite_derivatives(name):
    function, inputs, _ = inputs_of(name)
    equal = [jnp.full_like(x, 0.1) for x in inputs]
    loss = lambda *x: jnp.sum(jnp.sin(function(*x)))
    spots = tuple(range(len(equal)))
    first = jax.grad(loss, argnums=spots)
    total = lambda *x: sum(jnp.sum(jnp.sin(g)) for g in first(*x))
    for gradient in (*first(*equal), *jax.grad(total, argnums=spots)(*equal)):
        assert np.isfinite(gradient).all()


@each
def test_inside_scan_and_remat(name):
    function, inputs, _ = inputs_of(name)

    @jax.checkpoint
    def body(carry, _):
        return carry + 1, function(*inputs[:-1], inputs[-1] + 0 * carry)

    _, outputs = jax.lax.scan(body, jnp.float32(0), None, length=2)
    close(outputs[1], function(*inputs))


def largest_value(jaxpr):
    sizes = [0]
    for equation in jaxpr.eqns:
        sizes += [prod(variable.aval.shape) for variable in equation.outvars]
        for parameter in jax.tree.leaves(list(equation.params.values()), is_leaf=lambda p: hasattr(p, "eqns")):
            inner = getattr(parameter, "jaxpr", parameter)
            if hasattr(inner, "eqns"):
                sizes.append(largest_value(inner))
    return max(sizes)


def test_memory_grows_with_rows_and_not_with_pairs():
    rows = 512
    ids, scores = jnp.arange(rows) % 64, jnp.ones(rows)
    turns = jnp.ones((rows, 4)), jnp.zeros((rows, 4), int)
    calls = {
        "group": lambda: llm.group_advantages(scores + 0, ids),
        "step": lambda: llm.step_group_advantages(turns[0] + 0, turns[1], ids),
        "tree": lambda: llm.rollout_tree_advantages(turns[0] + 0, turns[1], turns[1], ids, scale="group"),
        "turns": lambda: llm.multi_turn_advantages(turns[0] + 0, ids),
    }
    for call in calls.values():
        assert largest_value(jax.make_jaxpr(call)().jaxpr) <= 16 * rows


def test_ids_may_be_traced_and_batched():
    scores = jnp.array([[1.0, 0.0, 0.5, 0.2], [0.3, 0.3, 0.9, 0.1]])
    ids = jnp.array([[0, 0, 7, 7], [5, -1, 5, 5]])
    got = jax.jit(jax.vmap(llm.group_advantages))(scores, ids)
    for row in range(2):
        close(got[row], llm.group_advantages(scores[row], ids[row]))


def test_values_that_cannot_be_checked_under_jit():
    tokens = jax.jit(llm.turn_to_tokens)(jnp.ones((1, 2)), jnp.array([[0, 2, -1, -5]]))
    np.testing.assert_array_equal(tokens, [[1.0, NAN, 0.0, NAN]])
    advantages = jax.jit(llm.trace_token_advantages)(
        jnp.ones((1, 2)), jnp.ones(1), jnp.array([[2, -5, -1, 7]]), jnp.array([[1, 1, 1, 0]])
    )
    np.testing.assert_array_equal(advantages, [[NAN, NAN, 1.0, 0.0]])
    agents = jax.jit(lambda ids: llm.multi_turn_advantages(jnp.ones((2, 1)), jnp.array([0, 1]), agent_ids=ids))
    np.testing.assert_array_equal(agents(jnp.array([0, 3])), [[1.0], [NAN]])
    deltas = jax.jit(llm.trace_turn_rewards)(jnp.array([[-1.0, 0.5, -1.0]]))
    assert np.isnan(deltas).all()
    for score in (-jnp.inf, jnp.inf, jnp.nan):
        deltas = jax.jit(llm.trace_turn_rewards)(jnp.array([[-1.0, score, -1.0, -1.0]]))
        np.testing.assert_array_equal(deltas, [[NAN, NAN, 0.0]])
    tree = jax.jit(llm.rollout_tree_advantages)(
        jnp.array([[0.0, jnp.inf, 1.0], [0.0, 0.0, 1.0]]), jnp.array([[0, 1, 2]] * 2), jnp.zeros((2, 3), int),
        jnp.array([0, 0]),
    )  # fmt: skip
    assert np.isfinite(tree).all()
    assert tree[0, :2].tolist() == [0.0, 0.0]
