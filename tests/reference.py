"""The float64 loops, which the package holds for its main job."""

from rltriton_jax._reference import *  # noqa: F403
