"""Flops by hand, and bytes that a right kernel can't avoid."""

import pytest
import torch
import torch.nn.functional as F

from autokernel.graph.count import count, needed
from autokernel.graph.lower import lower


def counted(function, *inputs):
    return count(lower(function, inputs))


def test_a_pointwise_operator_costs_one_flop_an_element_and_each_byte_once():
    x, y = torch.randn(4, 8), torch.randn(8)
    assert counted(lambda x, y: x * y + x, x, y) == (64, 4 * (32 + 8 + 32))


def test_products_cost_two_flops_a_term():
    a, b = torch.randn(3, 4, 5), torch.randn(6, 5)
    assert counted(lambda a, b: F.linear(a, b), a, b) == (2 * 12 * 5 * 6, 4 * (60 + 30 + 72))
    q = torch.randn(2, 3, 4, 5)
    assert counted(lambda q: q @ q.mT, q)[0] == 2 * 6 * 4 * 5 * 4


def test_convolution_and_attention_use_torchs_formulas():
    images, weight = torch.randn(2, 3, 8, 8), torch.randn(5, 3, 3, 3)
    assert counted(lambda x, w: F.conv2d(x, w, padding=1), images, weight)[0] == 2 * 2 * 64 * 5 * 3 * 9
    q = torch.randn(1, 2, 8, 16)
    assert counted(lambda q: F.scaled_dot_product_attention(q, q, q), q)[0] == 2 * 2 * 2 * 8 * 8 * 16


def test_a_reduction_costs_its_operand():
    assert counted(lambda x: x.sum(-1), torch.randn(4, 8)) == (32, 4 * (32 + 4))


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (lambda x: x[:4] + 1, 4 * 16),
        (lambda x: x[:4] + x[2:6], 6 * 16),
        (lambda x: x[:, ::2] * 2, 8 * 8),
        (lambda x: x.t()[3] * 2, 8),
        (lambda x: x.view(4, 2, 16)[:, 1].expand(3, 4, 16) * 2, 4 * 16),
        (lambda x: x[:4] + x.sum(), 8 * 16),
        (lambda x: torch.cat((x[1:2], x[1:2]), -1), 16),
        (lambda x: torch.zeros(3), 0),
    ],
)
def test_only_the_elements_that_are_needed_are_read(function, expected):
    module = lower(function, [torch.randn(8, 16)])
    assert needed(next(iter(module.graph.find_nodes(op="placeholder")))) == expected


def test_an_expanded_input_is_read_once():
    x = torch.randn(1, 16).expand(8, 16)
    assert counted(lambda x: x + 1, x)[1] == 4 * (16 + 128)


def test_an_embedding_reads_the_rows_it_picks():
    weight, index = torch.randn(1000, 16), torch.zeros(1, 5, dtype=torch.int64)
    assert counted(lambda w, i: F.embedding(i, w), weight, index)[1] == 4 * 80 + 8 * 5 + 4 * 80


def test_the_loss_reads_all_logits(gpt2):
    (loss,) = [region for region in gpt2.graphs[0].regions if region.title == "cross entropy"]
    assert loss.min_bytes == 4 * 2 * 24 * 96 + 8 * 2 * 24 + 4


def test_rotary_reads_only_its_part_of_the_tables(llama):
    rotary = next(region for region in llama.graphs[0].regions if region.title == "rotary")
    assert rotary.min_bytes == 4 * (24 * 64 + 2 * 24 * 16 + 24 * 64)
