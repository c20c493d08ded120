"""The command that installs what an extra brings, for errors that name it."""


def install(extra: str) -> str:
    return f'pip install ".[{extra}]" in a checkout'
