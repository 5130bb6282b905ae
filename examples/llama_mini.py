"""A small LLaMA, written the way most people write it: RMSNorm, rotary and attention spelled out.

4 layers, 512 wide, 8 query heads, 4 key/value heads, SwiGLU 1408, vocabulary 8192, one sequence of 256 tokens, fp32.
KernelBench form: `Model`, `get_init_inputs()`, `get_inputs()`.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class RMSNorm(nn.Module):
    def __init__(self, width: int, eps: float = 1e-5):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        variance = x.float().pow(2).mean(-1, keepdim=True)
        return (x.float() * torch.rsqrt(variance + self.eps)).type_as(x) * self.weight


def rotate_half(x: Tensor) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    return torch.cat((-second, first), dim=-1)


def rotary(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    return x * cos + rotate_half(x) * sin


class Attention(nn.Module):
    def __init__(self, width: int, heads: int, kv_heads: int):
        super().__init__()
        self.heads, self.kv_heads, self.head_width = heads, kv_heads, width // heads
        self.q_proj = nn.Linear(width, heads * self.head_width, bias=False)
        self.k_proj = nn.Linear(width, kv_heads * self.head_width, bias=False)
        self.v_proj = nn.Linear(width, kv_heads * self.head_width, bias=False)
        self.o_proj = nn.Linear(heads * self.head_width, width, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor) -> Tensor:
        batch, length, _ = x.shape
        q = self.q_proj(x).view(batch, length, self.heads, self.head_width).transpose(1, 2)
        k = self.k_proj(x).view(batch, length, self.kv_heads, self.head_width).transpose(1, 2)
        v = self.v_proj(x).view(batch, length, self.kv_heads, self.head_width).transpose(1, 2)
        q, k = rotary(q, cos, sin), rotary(k, cos, sin)
        k = k.repeat_interleave(self.heads // self.kv_heads, dim=1)
        v = v.repeat_interleave(self.heads // self.kv_heads, dim=1)
        scores = q @ k.transpose(-2, -1) / math.sqrt(self.head_width)
        weights = F.softmax(scores + mask, dim=-1, dtype=torch.float32).type_as(q)
        out = (weights @ v).transpose(1, 2).reshape(batch, length, -1)
        return self.o_proj(out)


class MLP(nn.Module):
    def __init__(self, width: int, hidden: int):
        super().__init__()
        self.gate_proj = nn.Linear(width, hidden, bias=False)
        self.up_proj = nn.Linear(width, hidden, bias=False)
        self.down_proj = nn.Linear(hidden, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Block(nn.Module):
    def __init__(self, width: int, heads: int, kv_heads: int, hidden: int):
        super().__init__()
        self.input_norm = RMSNorm(width)
        self.attention = Attention(width, heads, kv_heads)
        self.post_norm = RMSNorm(width)
        self.mlp = MLP(width, hidden)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor) -> Tensor:
        x = x + self.attention(self.input_norm(x), cos, sin, mask)
        return x + self.mlp(self.post_norm(x))


class Model(nn.Module):
    def __init__(
        self,
        vocabulary: int,
        width: int,
        layers: int,
        heads: int,
        kv_heads: int,
        hidden: int,
        max_length: int,
    ):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(Block(width, heads, kv_heads, hidden) for _ in range(layers))
        self.norm = RMSNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        head_width = width // heads
        frequencies = 1.0 / (10000.0 ** (torch.arange(0, head_width, 2).float() / head_width))
        angles = torch.outer(torch.arange(max_length).float(), frequencies)
        angles = torch.cat((angles, angles), dim=-1)
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())
        mask = torch.full((max_length, max_length), float("-inf")).triu(1)
        self.register_buffer("mask", mask)

    def forward(self, tokens: Tensor) -> Tensor:
        length = tokens.shape[1]
        x = self.embedding(tokens)
        cos, sin, mask = self.cos[:length], self.sin[:length], self.mask[:length, :length]
        for block in self.blocks:
            x = block(x, cos, sin, mask)
        return self.head(self.norm(x))


def get_init_inputs() -> list:
    return [8192, 512, 4, 8, 4, 1408, 512]


def get_inputs() -> list:
    return [torch.randint(0, 8192, (1, 256))]
