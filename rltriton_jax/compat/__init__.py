"""The functions of other JAX libraries, by their names, arguments and layouts, on this package's scans.

One import line changes and the numbers stay: `from rltriton_jax.compat import rlax`. Where an original reads what lies
behind the end of an episode (0 * nan), or broadcasts an array along the wrong axis, the function here does not; what else
differs is named in each docstring.
"""

from . import brax as brax
from . import purejaxrl as purejaxrl
from . import rl_triton as rl_triton
from . import rlax as rlax
from . import stoix as stoix
from . import tunix as tunix
