"""The examples of every docstring, and the README's Python that stands for itself."""

import doctest
import importlib
import pkgutil
import re
from pathlib import Path

import pytest

import rltriton_jax

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"


def modules():
    yield rltriton_jax.__name__
    for module in pkgutil.walk_packages(rltriton_jax.__path__, "rltriton_jax."):
        if not module.name.endswith("__main__"):
            yield module.name


def examples():
    """The doctests of every module that can be imported here."""
    seen = set()
    for name in modules():
        try:
            module = importlib.import_module(name)
        except ModuleNotFoundError as error:
            if (error.name or "").split(".")[0] == "rltriton_jax":
                raise
            continue  # what it needs is not installed
        for test in doctest.DocTestFinder(exclude_empty=True).find(module, name):
            if test.examples and test.name not in seen:
                seen.add(test.name)
                yield test


@pytest.mark.parametrize("example", list(examples()), ids=lambda test: test.name)
def test_docstring(example):
    flags = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS
    report = []
    runner = doctest.DocTestRunner(optionflags=flags)
    runner.run(example, out=report.append)
    assert runner.summarize(verbose=False).failed == 0, "".join(report)


def test_every_public_function_has_an_example():
    found = {test.name.split(".")[-1] for test in examples()}
    public = {name for name, f in vars(rltriton_jax).items() if name.islower() and callable(f) and name[0] != "_"}
    assert public <= found


def blocks():
    """The README's Python blocks that import what they use."""
    text = README.read_text(encoding="utf-8") if README.exists() else ""
    for block in re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
        if re.match(r"(import|from) ", block):
            yield block


@pytest.mark.parametrize("block", list(blocks()), ids=lambda block: str(len(block)))
def test_readme(block):
    exec(compile(block, "README.md", "exec"), {"__name__": "readme"})


def test_the_readme_has_an_example():
    if README.exists():
        assert list(blocks())
