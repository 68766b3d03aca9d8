"""Every key of the trainer's config: frozen dataclasses, with the unit and the source of the default under each field.

This module imports neither torch nor transformers: the launcher asks `dflash-train check` on a login node.
Unknown keys, wrong types and values outside their range are ConfigErrors with the dotted key and the nearest valid one.
Derived values (taps, γ from the block size, mask id) are filled in by resolve.py, not at the point of use.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum


class Recipe(StrEnum):
    draft = "draft"  # a DFlash or DFlash2 draft against a frozen target
    salm = "salm"  # a speech LLM: encoder, projector and causal LM


class Variant(StrEnum):
    dflash = "dflash"
    dflash2 = "dflash2"


class LabelSource(StrEnum):
    target_argmax = "target_argmax"
    ground_truth = "ground_truth"


class Schedule(StrEnum):
    constant = "constant"
    cosine = "cosine"
    linear = "linear"


class Precision(StrEnum):
    float32 = "float32"
    bfloat16 = "bfloat16"


@dataclass
class TargetConfig:
    path: str = ""
    """Folder of the frozen target: a SpeechLM folder (speech_lm.json) or a Hugging Face causal LM. Required (draft)."""
    precision: Precision = Precision.float32
    """dtype of the frozen weights and of the forward pass."""
    fingerprint: str | None = None
    """sha256 over the folder's files. null: filled in by the check. Training refuses a target with another one."""


@dataclass
class DraftConfig:
    variant: Variant = Variant.dflash2
    block_size: int = 8
    """Tokens of a block, the anchor included (published pairs with γ: 8/4, 10/5, 16/7)."""
    num_hidden_layers: int = 5
    target_layer_ids: list[int] | None = None
    """Taps: zero-based target layers, ascending. null: derived, first 1 and last L-3 (specification 1.2)."""
    mask_token_id: int | None = None
    """An id that the target's tokenizer never produces. null: the target folder's own `mask_token_id`."""
    intermediate_size: int | None = None
    """null: the target's."""
    num_attention_heads: int | None = None
    """null: the target's."""
    num_key_value_heads: int | None = None
    """null: the target's."""
    head_dim: int | None = None
    """null: the target's."""
    conv_kernel_size: int = 2
    """DFlash2: taps of the in-block convolution."""
    conv_group_size: int = 16
    """DFlash2: channels that share one dynamic coefficient; must divide the hidden size."""
    selector_rank: int = 256
    selector_top_k: int = 16
    """DFlash2: candidates a slot."""
    precision: Precision = Precision.float32
    """dtype of the forward pass; the master weights are fp32 in any case."""


@dataclass
class ObjectiveConfig:
    label_source: LabelSource = LabelSource.target_argmax
    num_anchors: int = 512
    """Anchor slots of a row at most: min(num_anchors, what the longest row of the data can hold), constant in a run."""
    loss_decay_gamma: float | None = 4.0
    """γ of the slot weights exp(-(j-1)/γ), in slots; null: all 1."""
    selector_loss_weight: float = 1.0


@dataclass
class SalmConfig:
    """Architecture of a speech LLM trained from scratch (`recipe: salm`)."""

    tokenizer: str = ""
    """Folder with a Hugging Face tokenizer (tokenizer.json). Required for `salm`."""
    num_mel_bins: int = 80
    encoder_hidden_size: int = 128
    encoder_layers: int = 4
    encoder_attention_heads: int = 4
    encoder_intermediate_size: int = 512
    llm_hidden_size: int = 128
    llm_layers: int = 6
    llm_attention_heads: int = 4
    llm_key_value_heads: int = 2
    llm_intermediate_size: int = 384
    dropout: float = 0.1
    spec_augment: bool = True
    """Time and frequency masking of the log-mel features in training."""


@dataclass
class DataConfig:
    train: str = ""
    """lhotse cuts manifest (.jsonl or .jsonl.gz) of the training utterances. Required."""
    revision: str | None = None
    """sha256 over the manifests, validation sets included. null: filled in by the check. Another one is refused."""
    batch_size: int = 8
    """Rows of one optimizer step, over all ranks and accumulation."""
    accumulation: int = 1
    """Micro-batches of one optimizer step."""
    num_workers: int = 0
    """Processes that load audio beside each rank; 0: in the training process."""


@dataclass
class ValidationConfig:
    interval: int = 0
    """Optimizer steps between validations; 0: none."""
    max_batches: int = 8
    """Batches of each set at most."""
    sets: dict[str, str] = field(default_factory=dict)
    """Name -> cuts manifest of a held-out set."""


@dataclass
class OptimizerConfig:
    """AdamW on fp32 master weights."""

    lr: float = 6e-4
    betas: list[float] = field(default_factory=lambda: [0.9, 0.95])
    eps: float = 1e-8
    weight_decay: float = 0.0
    clip: float = 1.0
    """Largest norm of the gradient; 0: no clipping."""


@dataclass
class SchedulerConfig:
    kind: Schedule = Schedule.constant
    warmup_steps: int = 0
    """Optimizer steps of linear warm-up."""
    horizon: int | None = None
    """Step at which cosine and linear reach `min_ratio`. null: max_steps."""
    min_ratio: float = 0.1
    """Floor of cosine and linear, as a fraction of lr."""


@dataclass
class CheckpointConfig:
    interval: int = 0
    """Optimizer steps between saves; 0: only at the deadline, at a stop and at the end."""


@dataclass
class TrainConfig:
    recipe: Recipe = Recipe.draft
    seed: int = 0
    max_steps: int = 0
    """Optimizer step at which the run is done, counted from the start of the run. Required."""
    target: TargetConfig = field(default_factory=TargetConfig)
    draft: DraftConfig = field(default_factory=DraftConfig)
    objective: ObjectiveConfig = field(default_factory=ObjectiveConfig)
    salm: SalmConfig = field(default_factory=SalmConfig)
    data: DataConfig = field(default_factory=DataConfig)
    validation: ValidationConfig = field(default_factory=ValidationConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    lr_scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
