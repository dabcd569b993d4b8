"""Frameworks that the program has imported, asked for by threads of our own."""

import sys


def imported(name):
    """The module, once it is imported as a whole; None before, and while another thread still imports it."""
    module = sys.modules.get(name)
    return None if getattr(getattr(module, "__spec__", None), "_initializing", False) else module
