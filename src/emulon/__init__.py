"""emulon: learning algorithms compiled into frozen softmax transformers, with a proved error."""

from emulon.certify import Certificate, Domain
from emulon.interpreter import Interpreter, Program, compile

__all__ = ["Certificate", "Domain", "Interpreter", "Program", "compile"]
