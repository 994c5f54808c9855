"""A digest of the code that measures: it follows what `run` refers to, and nothing else."""

from dataclasses import replace

import pytest

from reproduce.claim import Setting, all_claims
from reproduce.freshness import _installed, code_of
from reproduce.index import index
from reproduce.record import measure, read, write

TABLE_1 = all_claims()["emulation-table-1"]
HERE = "reproduce.emulation.trained_heads"
MODULES = "reproduce.emulation.modules"


def with_change(module, before, after):
    """The sources, with one module's text changed."""
    assert before in _installed(module)
    return lambda name: _installed(name).replace(before, after) if name == module else _installed(name)


@pytest.mark.parametrize(
    ("module", "before", "after", "stale"),
    [
        (HERE, "x = 2 * normal(", "x = 3 * normal(", True),
        (MODULES, ".softmax(dim=-1)", ".softmax(dim=-2)", True),
        (MODULES, "modules.parameters(), lr=lr", "modules.parameters(), lr=lr / 2", True),
        (HERE, "at_most(0.0, told)", "at_most(0.1, told)", False),  # the rule
        (HERE, "One softmax head, unscaled", "A head", False),  # a docstring
        (HERE, "# V has d columns", "# Here V has d columns", False),
        (
            MODULES,
            "return weights @ values, weights",
            "return (\n            weights @ values\n        ), weights",
            False,
        ),
        (MODULES, "modules.parameters(), lr=lr", "(modules.parameters()), lr=(lr)", False),
    ],
)
def test_the_digest_changes_with_what_is_measured_alone(module, before, after, stale):
    assert (code_of(TABLE_1, with_change(module, before, after)) != code_of(TABLE_1)) is stale


def test_a_result_of_other_code_or_sizes_is_marked_stale(tmp_path):
    claim = all_claims()["emulation-remark-4.1"]
    write(measure(claim, "small", 0, tmp_path), tmp_path)
    assert "**stale**." not in index([claim], tmp_path) and "0 are stale" in index([claim], tmp_path)
    scale = claim.scales["small"]
    other = replace(claim, scales={"small": replace(scale, sizes=scale.sizes | {"tokens": 1})})
    assert "**stale**." in index([other], tmp_path)
    assert "**stale**." in index([replace(claim, run=TABLE_1.run)], tmp_path)
    record = read(claim.name, "small", tmp_path)
    assert record is not None and record.about["code"] == code_of(claim)
    assert Setting(scale.sizes).seeds == record.seeds
