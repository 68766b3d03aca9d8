"""Log-mel features of 16 kHz audio, normalised within each utterance.

Frame f reads the samples [f * hop, f * hop + window) and nothing else (no padding at the edges), so the frames of a row
that lie within its own samples cannot depend on how far the batch is padded. Mean and spread are taken over those.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from transformers.audio_utils import mel_filter_bank

from dflash_train.errors import DataError

SAMPLE_RATE = 16000
FLOOR = 1e-4  # of mel power: digital silence between spliced clips sounds like the codec's quiet
SUBSAMPLING_LAYERS = 3  # Parakeet's 8-fold subsampling: kernel 3, stride 2, padding 1, three times


@dataclass(frozen=True)
class Geometry:
    """window and hop in samples (25 ms and 10 ms), fft its size, num_mel_bins bands from 0 to 8 kHz."""

    num_mel_bins: int
    window: int = 400
    hop: int = 160
    fft: int = 512

    def num_frames(self, num_samples: int) -> int:
        """Feature frames of that many samples; 0 if they do not fill one window."""
        return 0 if num_samples < self.window else 1 + (num_samples - self.window) // self.hop

    def num_audio_tokens(self, num_samples: int) -> int:
        """Frames that the encoder gives for that many samples: what the prompt holds places for.

        Raises DataError if the audio is too short for a single one.
        """
        length = self.num_frames(num_samples)
        if length < 1:
            raise DataError(f"{num_samples} samples of audio: at least {self.window} are needed")
        for _ in range(SUBSAMPLING_LAYERS):
            length = (length - 1) // 2 + 1
        return length


class LogMel(nn.Module):
    """audio float32 [B, A], samples int64 [B] -> features float32 [B, F, mel] and frame mask bool [B, F]."""

    filters: Tensor
    taper: Tensor

    def __init__(self, geometry: Geometry) -> None:
        super().__init__()
        self.geometry = geometry
        filters = mel_filter_bank(
            num_frequency_bins=geometry.fft // 2 + 1,
            num_mel_filters=geometry.num_mel_bins,
            min_frequency=0.0,
            max_frequency=SAMPLE_RATE / 2,
            sampling_rate=SAMPLE_RATE,
            norm="slaney",
            mel_scale="slaney",
        )
        # Their heights make unit areas in Hz; times the bin width they are weights of a mean, of order 1.
        scale = SAMPLE_RATE / geometry.fft
        self.register_buffer("filters", torch.tensor(filters, dtype=torch.float32) * scale, persistent=False)
        self.register_buffer("taper", torch.hann_window(geometry.window, periodic=False), persistent=False)

    @torch.no_grad()
    def forward(self, audio: Tensor, samples: Tensor) -> tuple[Tensor, Tensor]:
        geometry = self.geometry
        frames = audio.float().unfold(1, geometry.window, geometry.hop) * self.taper
        power = torch.fft.rfft(frames, n=geometry.fft).abs().square()
        features = (power @ self.filters).clamp_min(FLOOR).log()
        counts = torch.div(samples - geometry.window, geometry.hop, rounding_mode="floor") + 1
        mask = torch.arange(features.shape[1], device=audio.device)[None] < counts[:, None]
        keep = mask[..., None].float()
        number = keep.sum(1, keepdim=True).clamp_min(1.0)
        mean = (features * keep).sum(1, keepdim=True) / number
        spread = (((features - mean) * keep).square().sum(1, keepdim=True) / number).sqrt()
        return (features - mean) / (spread + 1e-3) * keep, mask
