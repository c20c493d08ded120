"""The table of test cases that all tests read: every public function with every way of calling it.

    for row in TABLE:
        kwargs = row.make(np.random.default_rng(0), T=13, batch_shape=(4,), time_axis=0)
        outputs = row.reference(kwargs)                 # a tuple of float64 arrays, one for each of row.outputs
        result = getattr(package, row.function)(**kwargs)

`load_cases()` gives the small inputs with known answers of cases.json.
"""

import json
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

import reference

FEATURES = 3


@dataclass(frozen=True)
class Function:
    """`data` names the argument whose shape the outputs have; `like_data` the others of the same shape."""

    outputs: tuple[str, ...]
    data: str
    floating: tuple[str, ...]
    like_data: tuple[str, ...] = ()
    values: bool = False
    reads_own_value: bool = False
    discount: bool = True
    lambda_: bool = True
    ratios: bool = False
    forward: bool = False


_VALUES = ("rewards", "values", "next_values", "bootstrap_value", "discount", "lambda_")
_Q = ("rewards", "q_taken", "next_expected_q", "discount")

FUNCTIONS = {
    "linear_recurrence": Function(
        ("x",), "inputs", ("coefficients", "inputs", "initial"), ("coefficients",), discount=False, lambda_=False
    ),
    "gae": Function(("advantages", "targets"), "rewards", _VALUES, values=True, reads_own_value=True),
    "vtrace": Function(
        ("targets", "advantages"),
        "rewards",
        (*_VALUES, "log_rhos", "rhos"),
        values=True,
        reads_own_value=True,
        ratios=True,
    ),
    "retrace": Function(
        ("targets", "advantages"),
        "rewards",
        (*_Q, "lambda_", "log_rhos", "rhos"),
        ("q_taken", "next_expected_q"),
        ratios=True,
    ),
    "off_policy_returns": Function(
        ("targets",), "rewards", (*_Q, "traces"), ("q_taken", "next_expected_q", "traces"), lambda_=False
    ),
    "lambda_returns": Function(("returns",), "rewards", _VALUES, values=True),
    "discounted_returns": Function(
        ("returns",), "rewards", ("rewards", "next_values", "bootstrap_value", "discount"), lambda_=False
    ),
    "n_step_returns": Function(("returns",), "rewards", _VALUES, values=True),
    "eligibility_traces": Function(("traces",), "inputs", ("inputs", "discount", "lambda_", "initial"), forward=True),
    "episodic_prefix_sum": Function(
        ("sums",), "inputs", ("inputs", "initial"), discount=False, lambda_=False, forward=True
    ),
}


@dataclass(frozen=True)
class Options:
    """One way of calling a function.

    flags     "terminated", "truncated" (and terminated), "starts" (T rows), "starts_past" (T + 1 rows)
    past      where the value past the window comes from: "row" (T + 1 rows), "scalar", "batch" or "next_values"
    discount, lambda_  a number, "steps", "exact" (steps with zeros, for lambda_ also ones), "no_time" (size 1 over
              time), "no_batch" (size 1 over the batch), "exact_no_batch", "signed"
    mask      "skip" or "reset"
    initial   None, "scalar" or "batch"
    features  the data have one more trailing axis than flags, mask, discount and lambda_
    dtypes    of the flags and the mask where they are not bool
    extra     further keyword arguments as they are
    """

    flags: str | None = None
    past: str = "row"
    discount: float | str = 0.97
    lambda_: float | str = 0.9
    mask: str | None = None
    initial: str | None = None
    ratios: str = "log_rhos"
    features: bool = False
    dtypes: dict = field(default_factory=dict)
    coefficients: str = "steps"
    extra: dict = field(default_factory=dict)


@dataclass(frozen=True)
class Row:
    function: str
    variant: str
    options: Options

    def __str__(self):
        return f"{self.function}-{self.variant}"

    @property
    def spec(self):
        return FUNCTIONS[self.function]

    @property
    def outputs(self):
        """Names of the outputs, in order."""
        return self.spec.outputs

    @property
    def smooth(self):
        """No argument stands at a point where a cut makes the result jump or bend: finite differences are right."""
        o = self.options
        steps = (o.discount, o.lambda_, o.coefficients)
        return not any(s in ("exact", "exact_no_batch", 0.0, 1.0) for s in steps)

    def differentiable(self, kwargs):
        """Names of the arguments in `kwargs` that gradients are taken with respect to."""
        return tuple(name for name in self.spec.floating if kwargs.get(name) is not None)

    def make(self, rng, T, batch_shape=(), time_axis=0):
        return _make(self.function, self.options, rng, T, tuple(batch_shape), time_axis)

    def reference(self, kwargs):
        """The outputs as a tuple of float64 arrays."""
        return as_tuple(getattr(reference, self.function)(**kwargs))

    def poison(self, kwargs, fill=np.nan):
        """A copy of `kwargs` with `fill` at every position that must not be read: the outputs stay the same."""
        return _poison(self.function, kwargs, fill)


def as_tuple(outputs):
    return tuple(outputs) if isinstance(outputs, tuple) else (outputs,)


def _make(function, options, rng, T, batch_shape, time_axis):
    spec, o = FUNCTIONS[function], options
    axis = time_axis % (len(batch_shape) + 1)
    trailing = (FEATURES,) if o.features else ()

    def shape(rows, batch=batch_shape):
        return (*batch[:axis], rows, *batch[axis:])

    def normal(rows=T):
        return rng.normal(size=(*shape(rows), *trailing))

    def per_batch():
        return rng.normal(size=(*batch_shape, *trailing))

    def flags(rows, name, probability=0.25):
        return (rng.random(shape(rows)) < probability).astype(o.dtypes.get(name, bool))

    def steps(kind, low, high, exact):
        if not isinstance(kind, str):
            return kind
        sizes = shape(1) if kind == "no_time" else shape(T)
        if kind.endswith("no_batch"):
            sizes = shape(T, (1,) * len(batch_shape))
        array = rng.uniform(-high if kind == "signed" else low, high, size=sizes)
        if kind.startswith("exact"):
            for number in exact:
                array[rng.random(sizes) < 0.25] = number
        return array

    kwargs = {"time_axis": axis if o.features else time_axis, spec.data: normal()}
    for name in spec.like_data:
        kwargs[name] = normal()
    if function == "linear_recurrence":
        kwargs["coefficients"] = steps(o.coefficients, 0.5, 1.05, (0.0,))
    if "traces" in kwargs:
        kwargs["traces"] = rng.uniform(0.1, 1.0, size=kwargs["traces"].shape)
        if o.lambda_ == "exact":
            kwargs["traces"][rng.random(kwargs["traces"].shape) < 0.25] = 0.0
    if spec.discount:
        kwargs["discount"] = steps(o.discount, 0.7, 1.05, (0.0,))
    if spec.lambda_:
        kwargs["lambda_"] = steps(o.lambda_, 0.2, 0.98, (0.0, 1.0))

    if o.past == "next_values" and not spec.like_data and not spec.forward:
        kwargs["next_values"] = normal()
    if spec.values and (o.past != "next_values" or spec.reads_own_value):
        kwargs["values"] = normal(T + 1 if o.past == "row" else T)
    if spec.values or function == "discounted_returns":
        if o.past == "scalar":
            kwargs["bootstrap_value"] = 1.5
        if o.past == "batch" or (o.past == "next_values" and not spec.values):
            kwargs["bootstrap_value"] = per_batch()

    if o.flags in ("terminated", "truncated"):
        kwargs["terminated"] = flags(T, "terminated")
    if o.flags == "truncated":
        kwargs["truncated"] = flags(T, "truncated")
    if o.flags in ("starts", "starts_past"):
        kwargs["episode_starts"] = flags(T + (o.flags == "starts_past"), "episode_starts")
    if o.flags == "starts" and not spec.forward:
        kwargs["next_episode_start"] = rng.random(batch_shape) < 0.5
    if o.mask:
        kwargs["mask"] = flags(T, "mask", 0.7)
        kwargs["mask_mode"] = o.mask
    if spec.ratios:
        log_rhos = 0.7 * normal()
        kwargs[o.ratios] = log_rhos if o.ratios == "log_rhos" else np.exp(log_rhos)
    if o.initial:
        kwargs["initial"] = 1.5 if o.initial == "scalar" else per_batch()
    return {**kwargs, **o.extra}


def _poison(function, kwargs, fill):
    spec = FUNCTIONS[function]
    data = kwargs[spec.data]
    axis, T = kwargs["time_axis"] % data.ndim, data.shape[kwargs["time_axis"]]
    out = {name: value.copy() if isinstance(value, np.ndarray) else value for name, value in kwargs.items()}

    def expand(array):
        """Time first, one axis for each axis of the data."""
        array = np.asarray(array)
        return np.moveaxis(array.reshape(array.shape + (1,) * (data.ndim - array.ndim)), axis, 0)

    def rows(name, default, count=T):
        array = np.asarray(default) if kwargs.get(name) is None else expand(kwargs[name])[:count]
        return np.broadcast_to(array, (count, *batch))

    def put(name, unread):
        """`fill` where an element of the argument is unread in every place that it is broadcast to."""
        if isinstance(kwargs.get(name), np.ndarray):
            view = expand(out[name])
            over = tuple(i for i in range(view.ndim) if view.shape[i] == 1)
            view[...] = np.where(unread.all(axis=over, keepdims=True), fill, view)
        elif kwargs.get(name) is not None and unread.all():
            out[name] = fill

    def put_batch(name, unread):
        if isinstance(kwargs.get(name), np.ndarray):
            out[name] = np.where(unread, fill, out[name])
        elif kwargs.get(name) is not None and unread.all():
            out[name] = fill

    batch = expand(data).shape[1:]
    if function == "linear_recurrence":
        if T == 0:
            return out
        coefficients = expand(kwargs["coefficients"])
        put_batch("initial", coefficients[-1 if kwargs.get("reverse") else 0] == 0)
        return out

    live = rows("mask", True) != 0
    reset = kwargs.get("mask_mode") == "reset"
    # following[t]: the row after a live step t, T past the window
    following = np.empty((T, *batch), int)
    behind = np.full(batch, T)
    for t in reversed(range(T)):
        following[t] = t + 1 if reset else behind
        behind = np.where(live[t], t, behind)
    ahead = following[:, None] == np.arange(T + 1).reshape(1, T + 1, *(1,) * len(batch)) if T else None

    def spread(read):
        """Rows that some live step reads as its following row, T + 1 of them."""
        return (ahead & (read & live)[:, None]).any(axis=0) if T else np.zeros((1, *batch), bool)

    starts = np.zeros((T + 1, *batch), bool)
    if kwargs.get("episode_starts") is not None:
        given = expand(kwargs["episode_starts"]) != 0
        starts[: len(given)] = given
        if kwargs.get("next_episode_start") is not None:
            last = np.asarray(kwargs["next_episode_start"])
            starts[T] = last.reshape(last.shape + (1,) * (len(batch) - last.ndim)) != 0
    terminated = (rows("terminated", False) != 0) | (np.take_along_axis(starts, following, 0) if T else False)
    before_dead = np.zeros((T, *batch), bool)
    before_dead[:-1] = reset & ~live[1:]
    end = terminated | (rows("truncated", False) != 0) | before_dead
    discount, lambda_ = rows("discount", 1.0), rows("lambda_", 1.0)
    given = np.shape(kwargs.get("discount", 1.0))
    cut = terminated | ((discount == 0) & (len(given) > axis and given[axis] == T))
    is_last = np.ones_like(live) if not T else ~(live[::-1].cumsum(0)[::-1] - live > 0)
    goes_on = ~end & ~is_last

    for name in (spec.data, *spec.like_data, "log_rhos", "rhos", "discount", "lambda_", "next_values"):
        put(name, ~live)
    for name in ("terminated", "truncated", "episode_starts"):
        own_next = "next_values" in kwargs or "next_expected_q" in kwargs
        if name in kwargs and not (name == "episode_starts" and reset and own_next):
            view = expand(out[name])
            over = tuple(i + 1 for i in range(len(batch)) if view.shape[i + 1] == 1)
            view[:T] = np.where((~live).all(axis=over, keepdims=True), view[:T] == 0, view[:T])

    def per_step(name):
        sizes = np.shape(kwargs.get(name, 1.0))
        return len(sizes) > axis and sizes[axis] == T > 1

    if spec.forward:
        for name in ("discount", "lambda_"):
            if per_step(name):
                put(name, ~live | ~goes_on | (cut if name == "lambda_" else False))
        first = live.argmax(0) if T else np.zeros(batch, int)
        dropped = np.take_along_axis(starts, first[None], 0)[0] | ~live.any(0)
        put_batch("initial", dropped | (~live[0] if reset and T else False))
        return out

    reads_next = ~cut
    if function == "lambda_returns":
        reads_next = ~cut & ~(goes_on & (lambda_ == 1))
    if function == "discounted_returns":
        put("next_values", ~live | cut | ~end)
        put_batch("bootstrap_value", ~spread(~end & (discount != 0))[T])
    elif "next_values" in kwargs or "next_expected_q" in kwargs:
        put("next_values", ~live | ~reads_next)
        put("next_expected_q", ~live | ~reads_next)
    else:
        read = spread(reads_next & ~before_dead)
        if spec.reads_own_value:
            read[:T] |= live
        put("values", ~read[: kwargs["values"].shape[axis]])
        put_batch("bootstrap_value", ~read[T])
    if spec.reads_own_value and "next_values" in kwargs:
        put("values", ~live)
    if function != "retrace" and per_step("lambda_"):
        put("lambda_", ~live | ~goes_on | cut)
    if per_step("discount"):
        put("discount", ~live | terminated)
    if function in ("retrace", "off_policy_returns"):
        carries = spread(goes_on & ~cut)[:T]
        put("traces", ~carries)
        put("lambda_", ~carries)
    return out


_BACKWARD = {
    "plain": {},
    "terminated": {"flags": "terminated"},
    "starts": {"flags": "starts"},
    "starts_past": {"flags": "starts_past"},
    "steps": {"flags": "terminated", "discount": "steps", "lambda_": "steps"},
    "steps_exact": {"flags": "terminated", "discount": "exact", "lambda_": "exact"},
    "no_time": {"flags": "terminated", "discount": "no_time", "lambda_": "no_batch"},
    "no_batch": {"flags": "terminated", "discount": "exact_no_batch", "lambda_": "no_time"},
    "signed_discount": {"flags": "terminated", "discount": "signed"},
    "discount_zero": {"discount": 0.0},
    "discount_one": {"flags": "terminated", "discount": 1.0},
    "skip": {"mask": "skip"},
    "skip_terminated": {"mask": "skip", "flags": "terminated"},
    "skip_starts": {"mask": "skip", "flags": "starts"},
    "skip_starts_past": {"mask": "skip", "flags": "starts_past"},
    "skip_steps_exact": {"mask": "skip", "flags": "terminated", "discount": "exact", "lambda_": "exact"},
    "reset": {"mask": "reset"},
    "reset_terminated": {"mask": "reset", "flags": "terminated"},
    "reset_starts": {"mask": "reset", "flags": "starts"},
    "reset_steps_exact": {"mask": "reset", "flags": "terminated", "discount": "exact", "lambda_": "exact"},
    "features": {"features": True, "flags": "terminated", "discount": "exact", "lambda_": "steps"},
    "features_skip": {"features": True, "flags": "terminated", "mask": "skip"},
    "features_reset": {"features": True, "flags": "starts", "mask": "reset", "discount": "exact", "lambda_": "exact"},
    "flag_dtypes": {
        "mask": "skip",
        "flags": "terminated",
        "dtypes": {"terminated": np.float32, "mask": np.int32},
    },
}
_LAMBDA = {
    "lambda_zero": {"flags": "terminated", "lambda_": 0.0},
    "lambda_one": {"flags": "terminated", "lambda_": 1.0},
    "lambda_above_one": {"flags": "terminated", "lambda_": 1.1},
}
_NEXT = {
    "truncated": {"flags": "truncated"},
    "truncated_steps_exact": {"flags": "truncated", "discount": "exact", "lambda_": "exact"},
    "skip_truncated": {"mask": "skip", "flags": "truncated"},
    "skip_truncated_steps_exact": {"mask": "skip", "flags": "truncated", "discount": "exact", "lambda_": "exact"},
    "reset_truncated": {"mask": "reset", "flags": "truncated"},
    "reset_truncated_steps_exact": {"mask": "reset", "flags": "truncated", "discount": "exact", "lambda_": "exact"},
    "features_truncated": {"features": True, "flags": "truncated", "mask": "skip"},
    "truncated_dtypes": {"flags": "truncated", "dtypes": {"terminated": np.uint8, "truncated": np.int64}},
}
_NEXT_VALUES = {
    "next_values": {},
    "next_values_starts": {"flags": "starts"},
    "skip_next_values": {"mask": "skip"},
    "reset_next_values": {"mask": "reset", "flags": "terminated"},
    "reset_next_values_starts": {"mask": "reset", "flags": "starts_past"},
    **_NEXT,
}
_PAST = {
    "bootstrap_scalar": {"past": "scalar", "flags": "terminated"},
    "bootstrap_batch": {"past": "batch", "flags": "terminated"},
    "bootstrap_batch_exact": {"past": "batch", "flags": "starts", "discount": "exact", "lambda_": "exact"},
    "skip_bootstrap_scalar": {"past": "scalar", "mask": "skip", "flags": "starts_past"},
    "skip_bootstrap_batch": {"past": "batch", "mask": "skip", "flags": "terminated"},
    "reset_bootstrap_batch": {"past": "batch", "mask": "reset", "flags": "starts"},
    "features_bootstrap_batch": {"past": "batch", "features": True, "flags": "terminated"},
}
_WITH_VALUES = {
    **_BACKWARD,
    **_LAMBDA,
    **_PAST,
    **{name: {**options, "past": "next_values"} for name, options in _NEXT_VALUES.items()},
}
_NO_CLIP = {"clip_rho": None, "clip_c": None}
_RATIOS = {
    "rhos": {"ratios": "rhos", "flags": "terminated"},
    "skip_rhos": {"ratios": "rhos", "flags": "terminated", "mask": "skip"},
    "clips": {"flags": "terminated", "extra": {"clip_rho": 1.7, "clip_c": 0.8}},
    "rhos_clips": {"ratios": "rhos", "flags": "terminated", "extra": {"clip_rho": 0.6, "clip_c": 1.2}},
    "no_clips": {"extra": _NO_CLIP},
    "infinite_clips": {"flags": "terminated", "extra": {"clip_rho": np.inf, "clip_c": np.inf}},
    "rhos_no_clips": {"ratios": "rhos", "flags": "terminated", "extra": _NO_CLIP},
}
_FORWARD = {
    **{name: options for name, options in _BACKWARD.items() if name != "discount_zero"},
    **_NEXT,
    "initial_scalar": {"initial": "scalar", "flags": "terminated"},
    "initial_batch": {"initial": "batch"},
    "initial_starts": {"initial": "batch", "flags": "starts"},
    "initial_starts_past": {"initial": "batch", "flags": "starts_past"},
    "initial_steps_exact": {"initial": "batch", "flags": "truncated", "discount": "exact", "lambda_": "exact"},
    "skip_initial": {"initial": "batch", "flags": "starts", "mask": "skip"},
    "reset_initial": {"initial": "batch", "flags": "starts", "mask": "reset"},
    "features_initial": {"initial": "batch", "features": True, "flags": "starts", "mask": "skip"},
}

_VARIANTS = {
    "linear_recurrence": {
        "plain": {},
        "initial_scalar": {"initial": "scalar"},
        "initial_batch": {"initial": "batch"},
        "signed": {"initial": "batch", "coefficients": "signed"},
        "zeros": {"initial": "batch", "coefficients": "exact"},
        "reverse": {"extra": {"reverse": True}},
        "reverse_initial": {"initial": "batch", "extra": {"reverse": True}},
        "reverse_zeros": {"initial": "batch", "coefficients": "exact", "extra": {"reverse": True}},
    },
    "gae": _WITH_VALUES,
    "vtrace": {
        **_WITH_VALUES,
        **_RATIOS,
        "clip_pg_rho": {"flags": "terminated", "extra": {"clip_rho": 2.0, "clip_pg_rho": 0.7}},
        "no_clip_pg_rho": {"ratios": "rhos", "extra": {"clip_rho": np.inf, "clip_c": 0.5, "clip_pg_rho": None}},
        "truncated_rhos": {"ratios": "rhos", "flags": "truncated", "past": "next_values", "mask": "reset"},
    },
    "retrace": {**_BACKWARD, **_LAMBDA, **_NEXT, **_RATIOS},
    "off_policy_returns": {**_BACKWARD, **_NEXT},
    "lambda_returns": _WITH_VALUES,
    "discounted_returns": {
        **_BACKWARD,
        **_PAST,
        **{name: {**options, "past": "next_values"} for name, options in _NEXT_VALUES.items()},
    },
    "n_step_returns": {
        **{
            name: {**options, "extra": {"n": (3, 1, 2, 5, 1000)[i % 5]}}
            for i, (name, options) in enumerate(_WITH_VALUES.items())
        },
        **{f"n_{n}": {"flags": "terminated", "lambda_": 1.0, "extra": {"n": n}} for n in (1, 2, 4, 7, 1000)},
        "n_3_truncated": {"flags": "truncated", "past": "next_values", "lambda_": 1.0, "extra": {"n": 3}},
        "n_3_skip": {"flags": "starts", "mask": "skip", "lambda_": 1.0, "extra": {"n": 3}},
    },
    "eligibility_traces": {**_FORWARD, **_LAMBDA},
    "episodic_prefix_sum": {
        name: options for name, options in _FORWARD.items() if not options.keys() & {"discount", "lambda_"}
    },
}

TABLE = [
    Row(function, variant, Options(**options))
    for function, variants in _VARIANTS.items()
    for variant, options in variants.items()
]


@dataclass(frozen=True)
class Case:
    """An input with known outputs: `expected` maps names of outputs to arrays, of the rows `check_indices` if given."""

    id: str
    function: str
    kwargs: dict
    expected: dict
    check_indices: tuple[int, ...] | None
    rtol: float
    note: str

    def __str__(self):
        return self.id

    def check(self, outputs):
        """Compare the outputs (one array or a tuple) with the expected ones."""
        outputs = dict(zip(FUNCTIONS[self.function].outputs, as_tuple(outputs), strict=True))
        for name, expected in self.expected.items():
            got = np.asarray(outputs[name])
            if self.check_indices is not None:
                got = got[list(self.check_indices)]
            np.testing.assert_allclose(
                got, expected, rtol=self.rtol, atol=self.rtol * np.nanmax(np.abs(expected), initial=1.0), err_msg=name
            )


_FLAGS = ("terminated", "truncated", "episode_starts", "next_episode_start", "mask")


def _decode(name, value):
    """Lists become arrays, "nan" and "inf" numbers; whole-number flags stay integers, all other arrays are float64."""
    if isinstance(value, dict):
        return np.full(value["length"], value["fill"], np.float64)
    if isinstance(value, list):
        return np.array(value, np.int32 if name in _FLAGS else np.float64)
    return float(value) if value in ("nan", "inf", "-inf") else value


def load_cases():
    cases = []
    for c in json.loads(Path(__file__).with_name("cases.json").read_text()):
        expected = dict(c["expected"])
        indices = expected.pop("check_indices", None)
        cases.append(
            Case(
                id=c["id"],
                function=c["function"],
                kwargs={name: _decode(name, value) for name, value in c["inputs"].items()},
                expected={name: _decode(name, value) for name, value in expected.items()},
                check_indices=None if indices is None else tuple(indices),
                rtol=c["rtol"],
                note=c["note"],
            )
        )
    return cases
