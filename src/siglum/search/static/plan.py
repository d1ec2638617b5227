"""How a search is laid out in passes of the decoder: which levels are walked one by one and which are scored at once.

A pass has a fixed price (kernels that wait for one another) and a price per token. Levels 0 to `merged` are read in
one pass over all nodes of those depths; then one pass a level for the live beam; from `depth` on, when the beam owns
few leaves, one pass over all of their paths (the tail), whose scores then replay the pruning.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from siglum.search.static.trie import DeviceTrie, largest

PASS_TOKENS = 3_000
"""What one more pass costs for a whole batch, in tokens: about 300 microseconds against 0.1 a token."""
SLOT_TOKENS = 1 / 30
"""What one token's look at another costs, in tokens."""
RARE = 1 / 256
"""How often a query is taken to need more room than a plan has; such queries are walked to the end."""
MERGED_TOKENS = 4_096
"""The most tokens of the first pass."""
DEVIATIONS = 6.0
"""Room for leaves above the mean number, in standard deviations of a beam's nodes drawn at random."""
MULTIPLE = 2
"""The room for leaves is a multiple of this."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Levels walked one by one and room for leaves after them; `depth` = L walks to the end.

    A query whose beam owns more than `cap` leaves at `depth` is found to be over and must be walked to the end.
    """

    depth: int
    cap: int = 0
    merged: int = 0
    sure: bool = True
    """Whether no beam of the index can own more leaves than there is room for."""


@dataclass(frozen=True, slots=True)
class Shape:
    """Static sizes of one trie and beam."""

    live: list[int]
    """Most live nodes at depth 0 to L."""
    children: list[int]
    """Most children of live nodes at level 0 to L - 1."""
    nodes: list[int]
    """Nodes at depth 0 to L."""
    most: list[int]
    """Most leaves that a beam can own at depth 0 to L."""
    usual: list[int]
    """Leaves that a beam rarely exceeds."""

    @classmethod
    def of(cls, trie: DeviceTrie, beam: int) -> Shape:
        """Count nodes, children and leaves of a trie; the usual number of leaves is a guess: `StaticSearch.learn`."""
        live, children = trie.widths(beam)
        most, usual = [], []
        for depth, width in enumerate(live):
            counts = trie.leaf_counts(depth)
            most.append(int(largest(counts, width).sum()))
            guess = width * float(counts.mean()) + DEVIATIONS * width**0.5 * float(counts.std())
            usual.append(min(most[-1], int(np.ceil(guess))))
        return cls(live, children, trie.nodes, most, usual)

    @property
    def levels(self) -> int:
        """Number L of levels."""
        return len(self.children)

    def plan(self, depth: int, cap: int | None = None, merged: int = 0) -> Plan:
        """Return a plan of this depth, with room for the usual number of leaves unless told otherwise."""
        room = -(-(self.usual[depth] if cap is None else cap) // MULTIPLE) * MULTIPLE
        return (
            Plan(depth, room, merged, sure=room >= self.most[depth]) if depth < self.levels else Plan(depth, 0, merged)
        )

    def fit(self, plan: Plan) -> Plan:
        """Return a plan as this trie allows it."""
        depth = max(1, min(plan.depth, self.levels))
        return self.plan(depth, plan.cap, min(plan.merged, self.deepest(depth)))

    def walk(self, batch: int) -> Plan:
        """Return the cheapest plan that goes level by level to the end."""
        plans = [Plan(self.levels, merged=merged) for merged in range(self.deepest(self.levels) + 1)]
        return min(plans, key=lambda plan: self.price(plan, batch))

    def best(self, batch: int, *, sure: bool = False) -> Plan:
        """Return the cheapest plan for a batch; with `sure`, one that no query can be over."""
        plans = [
            self.plan(depth, self.most[depth] if sure else None, merged)
            for depth in range(1, self.levels + 1)
            for merged in range(self.deepest(depth) + 1)
        ]
        return min(plans, key=lambda plan: self.price(plan, batch))

    def deepest(self, depth: int) -> int:
        """Return up to which depth the first pass may take in all nodes."""
        fits = [d for d in range(1, depth) if self.nodes[d - 1] <= self.live[d - 1] and self.tokens(d) <= MERGED_TOKENS]
        return max(fits, default=0)

    def tokens(self, merged: int) -> int:
        """Return the number of nodes at depth 0 to `merged`."""
        return sum(self.nodes[: merged + 1])

    def price(self, plan: Plan, batch: int) -> float:
        """Return the price of a plan for one query of a batch, in tokens."""
        tokens, passes = self.tokens(plan.merged), plan.depth - plan.merged
        slots = tokens * (plan.merged + 1)
        for level in range(plan.merged + 1, plan.depth):
            tokens += self.live[level]
            slots += self.live[level] * (level + 1)
        if plan.depth < self.levels:
            tokens, passes = tokens + plan.cap * (self.levels - plan.depth), passes + 1
            slots += plan.cap * self.levels
        late = 0.0 if plan.sure else 1 - (1 - RARE) ** batch
        return tokens + SLOT_TOKENS * slots + PASS_TOKENS * (passes + late * self.levels) / batch
