"""The base of every error that a user can do something about, and what the learner raises."""


class ClearError(Exception):
    """An expected fault: its message names what, where and what to do, so it is shown without a traceback."""


class LearnerError(ClearError, RuntimeError):
    """A model or an update that cannot be trained: the message names it, what was found and what to do."""
