"""What the command tells the user when it cannot do what was asked."""


class AmcError(Exception):
    """Ends the command with exit code 1. The message says what is wrong and what to do."""


class UsageError(AmcError):
    """The command line itself is wrong."""
