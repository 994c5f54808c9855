"""Scalar functions as expressions in ``t``: parsed, differentiated, and evaluated over tensors or Arb balls."""

from emulon.expressions.expression import Break, Function, parse

__all__ = ["Break", "Function", "parse"]
