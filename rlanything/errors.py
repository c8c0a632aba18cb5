"""Errors that a user can do something about: each message names what, where and what to do."""


class ClearError(Exception):
    """An expected fault. Its message is shown without a traceback."""


class ConfigError(ClearError, ValueError):
    """A configuration that cannot run: the message names the key, what was found and what is expected."""


class TaskError(ClearError, ValueError):
    """A task that cannot be used: the message names the task or file, what was found and what to do."""


class RunError(ClearError, RuntimeError):
    """A run that cannot start or go on: the message says where, why and what to do."""


class LearnerError(ClearError, RuntimeError):
    """A model or an update that cannot be trained: the message names it, what was found and what to do."""
