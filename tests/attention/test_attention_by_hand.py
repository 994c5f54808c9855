"""One softmax attention, frozen heads and a trace, against numbers worked out by hand."""

import math

import pytest
import torch

from emulon.attention import AttentionRecord, Head, Slots, Trace, attend

f64 = torch.float64


def random(*shape):
    return torch.randn(*shape, dtype=f64, generator=torch.Generator().manual_seed(sum(shape)))


def test_attention_is_the_softmax_average_of_its_values_without_a_hidden_scale():
    queries, keys = torch.tensor([[1.0, 2.0]], dtype=f64), torch.tensor([[1.0, 0.0], [0.0, 1.0]], dtype=f64)
    values = torch.tensor([[10.0], [20.0]], dtype=f64)
    by_hand = (math.exp(1) * 10 + math.exp(2) * 20) / (math.exp(1) + math.exp(2))
    assert attend(queries, keys, values).item() == pytest.approx(by_hand, rel=1e-15)


def test_causal_attention_sees_no_later_token():
    q, k, v = random(5, 3), random(5, 3), random(5, 2)
    out = attend(q, k, v, causal=True)
    for i in range(5):
        torch.testing.assert_close(out[i : i + 1], attend(q[i : i + 1], k[: i + 1], v[: i + 1]))
    assert not torch.allclose(out[:4], attend(q, k, v)[:4])


def test_leading_dimensions_are_batches():
    q, k, v = random(2, 3, 4, 5), random(3, 6, 5), random(2, 1, 6, 7)
    out = attend(q, k, v)
    assert out.shape == (2, 3, 4, 7)
    torch.testing.assert_close(out[1, 2], attend(q[1, 2], k[2], v[1, 0]))


def test_a_head_projects_attends_and_lets_other_tokens_ask():
    w_k, w_q, w_v = random(3, 4), random(3, 4) + 1, random(2, 4) - 1
    head, tokens, asking = Head(w_k, w_q, w_v), random(6, 4), random(2, 4)
    expected = torch.softmax((asking @ w_q.T) @ (tokens @ w_k.T).T, dim=-1) @ (tokens @ w_v.T)
    torch.testing.assert_close(head(tokens, asking), expected)
    torch.testing.assert_close(head(tokens), head(tokens, tokens))
    assert head.heads == 1


def test_several_heads_are_added_each_on_its_own_tokens():
    w_k, w_q, w_v = random(3, 2, 4), random(3, 2, 4) + 1, random(3, 5, 4)
    several = Head(w_k, w_q, w_v)
    own = random(3, 6, 4)
    alone = [Head(w_k[h], w_q[h], w_v[h]) for h in range(3)]
    torch.testing.assert_close(several(own), sum(head(own[h]) for h, head in enumerate(alone)))
    shared = random(1, 6, 4)
    torch.testing.assert_close(several(shared), sum(head(shared[0]) for head in alone))
    assert several.heads == 3 and "heads=3" in repr(several)


def test_a_head_is_frozen_its_matrices_are_buffers():
    head = Head(random(2, 3), random(2, 3), random(2, 3))
    assert not list(head.parameters())
    assert set(head.state_dict()) == {"w_k", "w_q", "w_v"}


def test_a_trace_records_every_attention_inside_it_and_none_outside():
    head = Head(random(2, 3), random(2, 3), random(2, 3), name="first")
    tokens = random(4, 3)
    head(tokens)
    with Trace() as trace:
        out = head(tokens)
        attend(tokens, tokens, tokens)
    head(tokens)
    assert [record.name for record in trace.records] == ["first", "attention"]
    record = trace["first"]
    assert isinstance(record, AttentionRecord)
    torch.testing.assert_close(record.weights, torch.softmax(record.scores, dim=-1))
    assert torch.equal(record.output, out)
    with pytest.raises(KeyError, match="no attention called 'second' ran"):
        trace["second"]


def test_the_inner_of_two_traces_records_and_the_outer_goes_on_after_it():
    tokens = random(2, 2)
    with Trace() as outer:
        with Trace() as inner:
            attend(tokens, tokens, tokens, name="inside")
        attend(tokens, tokens, tokens, name="after")
    assert [r.name for r in inner.records] == ["inside"] and [r.name for r in outer.records] == ["after"]


def test_slots_name_the_directions_of_a_token():
    slots = Slots(x=2, y=1)
    assert (slots.width, slots["y"], slots.labels) == (3, slice(2, 3), ("x[0]", "x[1]", "y"))
    assert list(slots) == ["x", "y"] and "x" in slots and "z" not in slots and repr(slots) == "Slots(x=2, y=1)"


def test_packed_tokens_are_read_back_by_select_in_any_order():
    slots = Slots(x=2, y=1, spare=2)
    x, y = random(4, 3, 2), random(3, 1)
    tokens = slots.pack(x=x, y=y)
    assert tokens.shape == (4, 3, 5)
    read = tokens @ slots.select("y", "x").T
    assert torch.equal(read, torch.cat([y.expand(4, 3, 1), x], dim=-1))
    assert not tokens[..., slots["spare"]].any()
    assert (slots.pack(x=x, y=2.0)[..., 2] == 2.0).all()
