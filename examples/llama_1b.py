"""A LLaMA of 1.5 billion weights, bf16, written out in plain PyTorch: the size at which a data-centre GPU is busy.

16 layers, 2048 wide, 32 query heads, 8 key/value heads, SwiGLU 8192, vocabulary 128,256, one sequence of 2048 tokens.
RMSNorm is computed in fp32 as the transformers library does; attention is PyTorch's own, causal.

KernelBench form: `Model`, `get_init_inputs()`, `get_inputs()`. The same code at the size of a test, on any CPU, is the
target `llama_1b.py:small`.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

DTYPE = torch.bfloat16


class RMSNorm(nn.Module):
    def __init__(self, width: int, eps: float = 1e-5):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width, dtype=DTYPE))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)
        return self.weight * wide.to(x.dtype)


def linear(inputs: int, outputs: int) -> nn.Linear:
    return nn.Linear(inputs, outputs, bias=False, dtype=DTYPE)


def rotate_half(x: Tensor) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    return torch.cat((-second, first), dim=-1)


def rotary(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    return x * cos + rotate_half(x) * sin


class Attention(nn.Module):
    def __init__(self, width: int, heads: int, kv_heads: int):
        super().__init__()
        self.heads, self.kv_heads, self.head_width = heads, kv_heads, width // heads
        self.q_proj = linear(width, heads * self.head_width)
        self.k_proj = linear(width, kv_heads * self.head_width)
        self.v_proj = linear(width, kv_heads * self.head_width)
        self.o_proj = linear(heads * self.head_width, width)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        batch, length, _ = x.shape
        q = self.q_proj(x).view(batch, length, self.heads, self.head_width).transpose(1, 2)
        k = self.k_proj(x).view(batch, length, self.kv_heads, self.head_width).transpose(1, 2)
        v = self.v_proj(x).view(batch, length, self.kv_heads, self.head_width).transpose(1, 2)
        q, k = rotary(q, cos, sin), rotary(k, cos, sin)
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.o_proj(out.transpose(1, 2).reshape(batch, length, -1))


class MLP(nn.Module):
    def __init__(self, width: int, hidden: int):
        super().__init__()
        self.gate_proj = linear(width, hidden)
        self.up_proj = linear(width, hidden)
        self.down_proj = linear(hidden, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Block(nn.Module):
    def __init__(self, width: int, heads: int, kv_heads: int, hidden: int):
        super().__init__()
        self.input_norm = RMSNorm(width)
        self.attention = Attention(width, heads, kv_heads)
        self.post_norm = RMSNorm(width)
        self.mlp = MLP(width, hidden)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = x + self.attention(self.input_norm(x), cos, sin)
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
        with torch.device("meta"):  # shapes only: PyTorch's own initialisation of these takes half a minute on a CPU
            self.embedding = nn.Embedding(vocabulary, width, dtype=DTYPE)
            self.blocks = nn.ModuleList(Block(width, heads, kv_heads, hidden) for _ in range(layers))
            self.norm = RMSNorm(width)
            self.head = linear(width, vocabulary)
        self.to_empty(device=torch.get_default_device())
        fill(self)
        head_width = width // heads
        frequencies = 1.0 / (500000.0 ** (torch.arange(0, head_width, 2).float() / head_width))
        self.register_buffer("frequencies", frequencies)
        self.register_buffer("positions", torch.arange(max_length).float())

    def angles(self, length: int) -> tuple[Tensor, Tensor]:
        """Cosine and sine by position and channel of a head, made in every call as the transformers library does."""
        angles = torch.outer(self.positions[:length], self.frequencies)
        angles = torch.cat((angles, angles), dim=-1)
        return angles.cos().to(DTYPE), angles.sin().to(DTYPE)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        cos, sin = self.angles(tokens.shape[1])
        for block in self.blocks:
            x = block(x, cos, sin)
        return self.head(self.norm(x))


@torch.no_grad()
def fill(model: nn.Module, std: float = 0.02) -> None:
    """Random weights within seconds: one block of normal numbers, read round and round.

    The block's length is a prime, so a row's start moves with every round: no two rows of a matrix are alike.
    """
    block = (std * torch.randn(1_048_573)).to(DTYPE)
    start = 0
    for parameter in model.parameters():
        flat = parameter.view(-1)
        done = 0
        while done < len(flat):
            count = min(len(flat) - done, len(block) - start)
            flat[done : done + count] = block[start : start + count]
            done, start = done + count, (start + count) % len(block)
        if parameter.dim() == 1:  # a norm's gain
            parameter += 1


def get_init_inputs() -> list:
    return [128_256, 2048, 16, 32, 8, 8192, 2048]


def get_inputs() -> list:
    return [torch.randint(0, 128_256, (1, 2048))]


def small() -> tuple:
    """2 layers, 128 wide, 4/2 heads, SwiGLU 352, vocabulary 512, 32 tokens."""
    return Model(512, 128, 2, 4, 2, 352, 32), [torch.randint(0, 512, (1, 32))]
