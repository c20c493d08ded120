"""What must be set before JAX starts: eight devices on the CPU, and GPU memory taken as it is needed."""

import gc
import importlib.util
import os
import sys
import zlib
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
sys.path.insert(0, str(TESTS))  # table, reference and helpers, with every import mode of pytest
if importlib.util.find_spec("rltriton_jax") is None:
    sys.path.append(str(TESTS.parent))

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
os.environ.setdefault("JAX_SKIP_CUDA_CONSTRAINTS_CHECK", "1")  # to compile for GPUs that are not there (h200.py)
if "xla_force_host_platform_device_count" not in os.environ.get("XLA_FLAGS", ""):
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=8".strip()

_LARGE = ("test_values.py", "test_gradients.py")  # every row of the table in every implementation and layout
_ONE_OF = 8
_TESTS_BETWEEN_CLEARINGS = 400
_count = 0


@pytest.fixture(autouse=True)
def _few_programs_in_memory():
    """Drops compiled programs now and then: each one maps memory, and Linux limits the maps of a process."""
    global _count
    yield
    _count += 1
    if _count % _TESTS_BETWEEN_CLEARINGS == 0:
        import jax

        jax.clear_caches()
        gc.collect()


@pytest.fixture
def x64():
    """64-bit numbers on, for one test."""
    import jax

    with jax.enable_x64(True):
        yield


def pytest_addoption(parser):
    parser.addoption(
        "--all", action="store_true", help="every row of the table, not one of eight (most of an hour on two cores)"
    )


def pytest_collection_modifyitems(config, items):
    """Keeps one of eight of the largest parametrized tests, other ones on each Python, unless --all or a name is asked for."""
    if config.getoption("--all") or any("::" in arg for arg in config.args):
        return
    turn = sys.version_info.minor % _ONE_OF
    left = [
        i
        for i in items
        if i.path.name in _LARGE and hasattr(i, "callspec") and zlib.crc32(i.nodeid.encode()) % _ONE_OF != turn
    ]
    config.hook.pytest_deselected(items=left)
    dropped = set(left)
    items[:] = [item for item in items if item not in dropped]
