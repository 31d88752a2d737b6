"""The laws: functions of the facts that yield what breaks them.

A law's name is the function's, and what it demands is the first line of its
documentation. README.md says how each decides.
"""

LAWS = []


def law(function):
    LAWS.append(function)
    return function


def law_name(function):
    return function.__name__.replace('_', ' ')


def names():
    """The laws by name, with what they say."""
    return {law_name(function): function.__doc__ for function in LAWS}
