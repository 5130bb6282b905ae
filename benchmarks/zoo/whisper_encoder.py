"""The encoder of Whisper small (Radford et al. 2022), random weights: thirty seconds of sound as 80 mel bands."""

import torch
from torch import Tensor, nn
from transformers import WhisperConfig
from transformers.models.whisper.modeling_whisper import WhisperEncoder

SMALL = WhisperConfig(d_model=768, encoder_layers=12, encoder_attention_heads=12, encoder_ffn_dim=3072)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = WhisperEncoder(SMALL)

    def forward(self, features: Tensor) -> Tensor:
        hidden: Tensor = self.encoder(features).last_hidden_state
        return hidden


def get_inputs() -> list[Tensor]:
    return [torch.randn(1, SMALL.num_mel_bins, 2 * SMALL.max_source_positions)]
