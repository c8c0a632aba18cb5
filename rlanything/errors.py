"""Errors that a user can mend: each message says what is wrong, where, and what to do."""


class ClearError(Exception):
    """An expected fault. Its message is shown without a traceback."""


class ConfigError(ClearError, ValueError):
    """A configuration that cannot run. The message names the key, the value found and the one expected."""


class ModelError(ClearError, ValueError):
    """A model whose files cannot be used. The message names the model, the file and the remedy."""


class TaskError(ClearError, ValueError):
    """A task that cannot be used. The message names the task or file."""


class RunError(ClearError, RuntimeError):
    """A run that cannot start or go on."""


class LearnerError(ClearError, RuntimeError):
    """A model or an update that cannot be trained."""
