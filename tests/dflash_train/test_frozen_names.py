"""Names and defaults that others depend on: a change here is a decision, not an accident."""

from dflash_train.config import TrainConfig
from dflash_train.config_tree import leaf_keys, to_tree
from dflash_train.observe.metrics_file import ADDED, NAMES, VALIDATION_NAMES


def test_metrics_names_and_their_order():
    assert " ".join(NAMES) == (
        "step link time loss base_loss selector_loss grad_norm lr step_seconds data_seconds tokens valid_blocks "
        "accept_len skipped skip_reason peak_bytes"
    )
    assert ADDED == ("accuracy", "candidate_recall")
    assert VALIDATION_NAMES == ("step", "link", "time", "validation")


def test_published_defaults():
    config = TrainConfig()
    assert config.objective.label_source == "target_argmax"
    assert config.draft.variant == "dflash2"
    assert config.draft.block_size == 8
    assert config.objective.loss_decay_gamma == 4.0
    assert config.objective.num_anchors == 512
    assert config.optimizer.lr == 6e-4
    assert config.lr_scheduler.kind == "constant"
    assert config.lr_scheduler.warmup_steps == 0
    assert config.optimizer.betas == [0.9, 0.95]
    assert config.optimizer.weight_decay == 0.0
    assert config.optimizer.clip == 1.0
    assert (config.draft.selector_rank, config.draft.selector_top_k) == (256, 16)
    assert (config.draft.conv_kernel_size, config.draft.conv_group_size) == (2, 16)
    assert config.objective.selector_loss_weight == 1.0


def test_config_keys():
    assert sorted(leaf_keys()) == sorted(KEYS)
    assert set(to_tree(TrainConfig())) == {key.partition(".")[0] for key in KEYS}


KEYS = [
    "recipe",
    "seed",
    "max_steps",
    "target.path",
    "target.precision",
    "target.fingerprint",
    "draft.variant",
    "draft.block_size",
    "draft.num_hidden_layers",
    "draft.target_layer_ids",
    "draft.mask_token_id",
    "draft.intermediate_size",
    "draft.num_attention_heads",
    "draft.num_key_value_heads",
    "draft.head_dim",
    "draft.conv_kernel_size",
    "draft.conv_group_size",
    "draft.selector_rank",
    "draft.selector_top_k",
    "draft.precision",
    "objective.label_source",
    "objective.num_anchors",
    "objective.loss_decay_gamma",
    "objective.selector_loss_weight",
    "salm.tokenizer",
    "salm.num_mel_bins",
    "salm.encoder_hidden_size",
    "salm.encoder_layers",
    "salm.encoder_attention_heads",
    "salm.encoder_intermediate_size",
    "salm.encoder_subsampling_channels",
    "salm.ctc_weight",
    "salm.llm_hidden_size",
    "salm.llm_layers",
    "salm.llm_attention_heads",
    "salm.llm_key_value_heads",
    "salm.llm_intermediate_size",
    "salm.dropout",
    "salm.spec_augment",
    "data.train",
    "data.revision",
    "data.shuffle",
    "data.batch_size",
    "data.accumulation",
    "data.num_workers",
    "validation.interval",
    "validation.max_batches",
    "validation.sets",
    "optimizer.lr",
    "optimizer.betas",
    "optimizer.eps",
    "optimizer.weight_decay",
    "optimizer.clip",
    "lr_scheduler.kind",
    "lr_scheduler.warmup_steps",
    "lr_scheduler.horizon",
    "lr_scheduler.min_ratio",
    "checkpoint.interval",
]
