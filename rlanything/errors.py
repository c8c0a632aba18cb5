"""The base of every error that a user can do something about."""


class ClearError(Exception):
    """An expected fault: its message names what, where and what to do, so it is shown without a traceback."""
