"""Compiles whole jitted functions for H200s on a machine that has none, and reads what XLA made of them.

Needs jax-cuda13-plugin and jax-cuda13-pjrt of the version of the installed jax, and a ptxas that Triton finds.
"""

import importlib.util
import re
from collections import Counter

import jax
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh, NamedSharding

TARGET = """
gpu_device_info {
  threads_per_block_limit: 1024
  threads_per_warp: 32
  shared_memory_per_block: 49152
  shared_memory_per_core: 233472
  threads_per_core_limit: 2048
  core_count: 132
  fpus_per_core: 128
  block_dim_limit_x: 2147483647
  block_dim_limit_y: 65535
  block_dim_limit_z: 65535
  memory_bandwidth: 4800000000000
  l2_cache_size: 52428800
  clock_rate_ghz: 1.98
  device_memory_size: 151397597184
  shared_memory_per_block_optin: 232448
  cuda_compute_capability { major: 9 }
  registers_per_core_limit: 65536
  registers_per_block_limit: 65536
  thread_dim_limit_x: 1024
  thread_dim_limit_y: 1024
  thread_dim_limit_z: 64
  device_vendor: "NVIDIA Corporation"
  platform_version: "Compute Capability 9.0"
  device_address_bits: 64
  name: "NVIDIA H200"
  driver_version: "13.0.0"
  runtime_version: "13.0.0"
  compile_time_toolkit_version: "13.0.0"
  dnn_version: "9.10.0"
}
platform_name: "CUDA"
dnn_version_info { major: 9 minor: 10 patch: 0 }
device_description_str: "NVIDIA H200"
"""

needs_compiler = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("jax_cuda13_plugin", "jax_triton")),
    reason="needs jax-cuda13-plugin and jax-triton",
)


def mesh_of(shape, names, types=AxisType.Auto):
    """A mesh of H200s that nobody has."""
    from jax.experimental import topologies

    gpus = int(np.prod(shape))
    topology = topologies.get_topology_desc(platform="cuda", target_config=TARGET, topology=f"1x1x{gpus}")
    return Mesh(np.array(topology.devices).reshape(shape), names, axis_types=(types,) * len(names))


def compiled(f, mesh, args):
    """f compiled for a mesh, given the (shape, dtype, spec) of its arguments."""
    structs = [jax.ShapeDtypeStruct(s, d, sharding=NamedSharding(mesh, spec)) for s, d, spec in args]
    return jax.jit(f).lower(*structs).compile()


def launches(compiled):
    """How often ENTRY runs each kind of operation."""
    entry = compiled.as_text().split("ENTRY", 1)[1]
    free = {"parameter", "constant", "get-tuple-element", "tuple", "bitcast"}
    return Counter(op for op in re.findall(r"= (?:\([^=]*?\)|\S+) ([a-z\-]+)\(", entry) if op not in free)


def exchanges(compiled):
    """How often ENTRY runs each kind of collective."""
    collective = re.compile(r"(all-|reduce-scatter|collective-)(?!.*-done$)")
    return Counter(op.removesuffix("-start") for op in launches(compiled).elements() if collective.match(op))
