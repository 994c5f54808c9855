"""Every refusal has one class, one line, and says what to do."""


class EmulonError(ValueError):
    """Base of all refusals, so that a caller can catch them together."""


class BadShape(EmulonError):
    """A tensor's shape does not fit the construction it was given to."""


class OutOfDomain(EmulonError):
    """Data outside the bounds a construction was built for, or not finite."""


class ToleranceTooTight(EmulonError):
    """The tolerance is below what the dtype, or the number of points, allows; `smallest` is about what it allows."""

    def __init__(self, what: str, tolerance: float, smallest: float, advice: str = "") -> None:
        super().__init__(f"{what} cannot be promised to {tolerance:.1e}; ask for at least {smallest:.1e}{advice}")
        self.smallest = smallest
        self.advice = advice


class BadExpression(EmulonError):
    """A function that cannot be read, or is not finite on its interval."""


class NotCertified(EmulonError):
    """An observed error above the certified bound: a bug in emulon, please report it."""
