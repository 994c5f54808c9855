"""The smallest honest softmax transformer: one attention, frozen heads, named slots, a trace."""

from emulon.attention.softmax import AttentionRecord, Head, Slots, Trace, attend

__all__ = ["AttentionRecord", "Head", "Slots", "Trace", "attend"]
