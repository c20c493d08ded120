"""The examples in the docstrings of the public functions, and the README's, run as tests."""

import doctest
import importlib
import re
from pathlib import Path

import pytest

MODULES = [
    "_advantages",
    "_returns",
    "_traces",
    "llm._groups",
    "llm._segments",
    "llm._tokens",
    "llm._trace",
    "llm._tree",
    "llm._turns",
]


@pytest.mark.parametrize("name", MODULES)
def test_examples(name):
    module = importlib.import_module(f"rltriton_jax.{name}")
    failed, tried = doctest.testmod(module, optionflags=doctest.NORMALIZE_WHITESPACE)
    assert tried and not failed


def test_every_public_function_has_an_example():
    import rltriton_jax

    functions = [f for f in vars(rltriton_jax).values() if callable(f) and getattr(f, "__name__", "").islower()]
    assert len(functions) == 10
    for f in functions:
        assert all(word in f.__doc__ for word in ("Args:", "Returns:", "Raises:", ">>>")), f.__name__


def test_the_first_example_of_the_readme():
    text = (Path(__file__).parent.parent / "README.md").read_text()
    code = re.search(r"```python\n(.*?)```", text, re.DOTALL).group(1)
    assert text[: text.index("```python")].count("\n") < 20
    scope = {}
    exec(code, scope)
    advantages, targets = scope["update"](
        *(scope["jnp"].ones((4, 2)), scope["jnp"].zeros((5, 2)), scope["jnp"].zeros((4, 2)))
    )
    assert advantages.shape == targets.shape == (4, 2)
