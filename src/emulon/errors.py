"""Every refusal has one class, one line, and says what to do."""


class EmulonError(ValueError):
    """Base of all refusals, so that a caller can catch them together."""


class BadShape(EmulonError):
    """A tensor's shape does not fit the construction it was given to."""


class OutOfDomain(EmulonError):
    """Data outside the bounds a construction was built for, or not finite."""


class ToleranceTooTight(EmulonError):
    """The tolerance is below what the dtype, or the number of heads, allows; `smallest` can be promised.

    `advice` is what else would help, as it continues the sentence: ", or use float64".
    """

    def __init__(self, what: str, tolerance: float, smallest: float, advice: str = "") -> None:
        # Rounded up, so that the figure read off the message is accepted.
        shown = f"{smallest * 1.05:.1e}"
        super().__init__(f"{what} can promise {shown}, not {tolerance:.1e}; loosen it{advice}")
        self.smallest = smallest
        self.advice = advice


class BadExpression(EmulonError):
    """A function that cannot be read, or is not finite on its interval."""


class NotCertified(EmulonError):
    """An observed error above the certified bound: a bug in emulon, please report it."""
