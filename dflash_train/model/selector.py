"""DFlash2's pairwise path selector (specification 2.2).

    C_j      = top-k ids of the draft's logits U_j
    S_j(a,b) = U_j(b) + < A[a] * (Pm h_j), B[b] >        a: token chosen for slot j-1 (slot 1: the anchor), b in C_j

At decoding a greedy (or sampled) walk over slots 1..P; in training the predecessor is teacher-forced.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class CandidateSelector(nn.Module):
    """The two codebooks (bare parameters: servers expect keys without `.weight`) and the projection."""

    def __init__(self, hidden_size: int, vocab_size: int, rank: int) -> None:
        super().__init__()
        self.predecessor_codebook = nn.Parameter(torch.empty(vocab_size, rank))
        self.successor_codebook = nn.Parameter(torch.empty(vocab_size, rank))
        self.hidden_projection = nn.Linear(hidden_size, rank, bias=False)

    def pair_scores(self, hidden: Tensor, predecessors: Tensor, candidates: Tensor) -> Tensor:
        """Second term of S: hidden [..., H], predecessors int64 [...], candidates int64 [..., k] -> fp32 [..., k]."""
        left = F.embedding(predecessors, self.predecessor_codebook) * self.hidden_projection(hidden)
        right = F.embedding(candidates, self.successor_codebook)
        return torch.einsum("...r,...kr->...k", left.float(), right.float())

    def walk(self, hidden: Tensor, logits: Tensor, anchor: Tensor, top_k: int) -> Tensor:
        """Greedy choice of slots 1..P, each given the one before.

        hidden: [B, P, H], logits: [B, P, V] (vocabulary padding already masked), anchor: int64 [B] -> int64 [B, P].
        """
        values, candidates = logits.float().topk(top_k, dim=-1)
        chosen, previous = [], anchor
        for slot in range(hidden.shape[1]):
            scores = values[:, slot] + self.pair_scores(hidden[:, slot], previous, candidates[:, slot])
            previous = candidates[:, slot].gather(-1, scores.argmax(-1, keepdim=True)).squeeze(-1)
            chosen.append(previous)
        return torch.stack(chosen, dim=1)
