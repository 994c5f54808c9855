"""emulon: learning algorithms compiled into frozen softmax transformers, with a proved error."""

from emulon.certify import Certificate, Domain

__all__ = ["Certificate", "Domain"]
