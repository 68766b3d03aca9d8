"""Acceptance counters (specification 6.4). They are summed over requests and divided last; MALs are never averaged."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Counters:
    """rounds: propose-and-verify passes. draft_tokens: proposed. accepted: of them, without the bonus token.

    accepted_by_slot[j-1]: rounds that accepted at least j tokens; proposed_by_slot[j-1]: rounds that proposed slot j.
    The first token of an answer comes from the prefill and belongs to no round; a round cut by a stop token counts in
    full.
    """

    rounds: int
    draft_tokens: int
    accepted: int
    accepted_by_slot: tuple[int, ...]
    proposed_by_slot: tuple[int, ...]

    @classmethod
    def zero(cls, slots: int) -> Counters:
        return cls(0, 0, 0, (0,) * slots, (0,) * slots)

    @classmethod
    def of_round(cls, accepted: int, slots: int) -> Counters:
        by_slot = tuple(int(slot < accepted) for slot in range(slots))
        return cls(1, slots, accepted, by_slot, (1,) * slots)

    def __add__(self, other: Counters) -> Counters:
        return Counters(
            self.rounds + other.rounds,
            self.draft_tokens + other.draft_tokens,
            self.accepted + other.accepted,
            tuple(a + b for a, b in zip(self.accepted_by_slot, other.accepted_by_slot, strict=True)),
            tuple(a + b for a, b in zip(self.proposed_by_slot, other.proposed_by_slot, strict=True)),
        )

    @property
    def mal(self) -> float:
        """Mean accepted length, bonus token included: 1 + accepted / rounds, in [1, block_size]; 0 without a round."""
        return 1 + self.accepted / self.rounds if self.rounds else 0.0

    @property
    def unconditional(self) -> tuple[float, ...]:
        """Of the rounds that proposed slot j, the share that accepted it (what vLLM prints)."""
        return tuple(_ratio(a, p) for a, p in zip(self.accepted_by_slot, self.proposed_by_slot, strict=True))

    @property
    def conditional(self) -> tuple[float, ...]:
        """Of the rounds that accepted slot j-1 (slot 1: of all rounds), the share that accepted slot j."""
        before = (self.rounds, *self.accepted_by_slot[:-1])
        return tuple(_ratio(a, b) for a, b in zip(self.accepted_by_slot, before, strict=True))


def _ratio(part: int, whole: int) -> float:
    return part / whole if whole else 0.0
