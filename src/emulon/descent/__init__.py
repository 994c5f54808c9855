"""Gradient descent in context, before any module runs it: what constructions and interpreter share.

`plan`: what an algorithm, a domain and data decide. `layout`: the tokens of Theorem 3.1. `checks`: what a run watches.
`curvature`: how steep a loss's derivative gets, enclosed. `run`: what a run is, and what can be promised of it.
"""

from emulon.descent.layout import TokenLayout
from emulon.descent.plan import Plan

__all__ = ["Plan", "TokenLayout"]
