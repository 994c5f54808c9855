"""The smallest honest softmax transformer: one attention, frozen heads, named slots, a trace."""

from emulon.attention.head import Head
from emulon.attention.slots import Slots
from emulon.attention.softmax import AttentionRecord, Trace, attend

__all__ = ["AttentionRecord", "Head", "Slots", "Trace", "attend"]
