"""`python -m rltriton_jax`."""

import sys

from ._demo import main

if __name__ == "__main__":
    sys.exit(main())
