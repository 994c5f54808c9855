"""Known answers for inference engines: tiny stock checkpoints whose every register is known exactly.

from emulon.canary import assert_known_answers

def test_known_answers():
    assert_known_answers(lambda folder: MyEngine(folder).logits)  # lists of token ids in, the last token's logits out
"""

from emulon.canary.check import CANARIES, Report, assert_known_answers, canary, check

__all__ = ["CANARIES", "Report", "assert_known_answers", "canary", "check"]
