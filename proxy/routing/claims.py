"""What this proxy has under way at each node, counted exactly: whoever claims gives back."""

from dataclasses import dataclass, field

from discovery.registry import Node

MOST_IDLE = 4096
WINDOW = 8  # prompts; a batch of several ends all at once, so one alone says little


@dataclass(frozen=True, slots=True)
class PromptSize:
    """What is to be computed: `missing` tokens behind `cached` ones."""

    missing: int
    cached: int

    @property
    def pairs(self) -> int:
        """Of a missing token and one before it: what attention computes."""
        return self.missing * (2 * self.cached + self.missing) // 2


@dataclass(slots=True)
class PromptWork:
    """Prompts, summed up."""

    prompts: int = 0
    tokens: int = 0
    pairs: int = 0

    def add(self, prompt: PromptSize, times: int = 1) -> None:
        """One more; with -1, one less."""
        self.prompts += times
        self.tokens += times * prompt.missing
        self.pairs += times * prompt.pairs


@dataclass(frozen=True, slots=True)
class WorkTiming:
    """So much work took a node so long, without a pause."""

    work: PromptWork
    seconds: float


@dataclass(slots=True)
class NodeClaims:
    """What this proxy has at one node now.

    `decoding` of its `requests` have begun to bring tokens there. `ahead` is what prompts have
    yet to compute, `tokens` all whose KV is held there, or will be. The last two are as of the
    node's last word. `working_since`: the node has worked on `ahead` and nothing else.
    """

    requests: int = 0
    decoding: int = 0
    tokens: int = 0
    ahead: PromptWork = field(default_factory=PromptWork)
    done: PromptWork = field(default_factory=PromptWork)
    done_s: float = 0.0
    worked_s: float = 0.0
    working_since: float = 0.0
    heard_at: float | None = None
    requests_then: int = 0
    tokens_then: int = 0
    most: int = 0

    def others(self, node: Node) -> int:
        """Requests that the node speaks of and this proxy did not send.

        A node counts ours too: as many as there were at most since it spoke before, lest one
        that has ended meanwhile is taken for somebody else's.
        """
        if self.heard_at != node.heard_at:
            self.heard_at, self.tokens_then = node.heard_at, self.tokens
            self.requests_then, self.most = self.most, self.requests
        return max(0, node.load.waiting + node.load.running - self.requests_then)

    def unheard_tokens(self, node: Node) -> int:
        """Tokens that were claimed since the node last said how many blocks are free."""
        self.others(node)
        return max(0, self.tokens - self.tokens_then)

    def begin(self, prompt: PromptSize, now: float) -> None:
        """One more prompt is to be run."""
        if not self.ahead.prompts:
            self.working_since = now
        self.ahead.add(prompt)

    def finish(self, prompt: PromptSize, now: float) -> WorkTiming | None:
        """One was run; answers with what is known once several were, or all."""
        spent = max(0.0, now - self.working_since)
        self.ahead.add(prompt, -1)
        self.done.add(prompt)
        self.done_s, self.worked_s = self.done_s + spent, self.worked_s + spent
        self.working_since = max(self.working_since, now)  # it may be told late
        if self.ahead.prompts and self.done.prompts < WINDOW:
            return None
        measured = WorkTiming(self.done, self.done_s)
        self.done, self.done_s = PromptWork(), 0.0
        return measured

    def drop(self, prompt: PromptSize, now: float) -> None:
        """One will not be run, or not to its end: what was measured beside it says nothing."""
        self.ahead.add(prompt, -1)
        self.done, self.done_s, self.working_since = PromptWork(), 0.0, now


NOTHING = NodeClaims()


@dataclass(slots=True, eq=False)
class Claim:
    """One request's part of a share; `ran` and `end` count once, however often they come."""

    node_claims: NodeClaims
    tokens: int
    prompt: PromptSize | None = None
    decoding: bool = False
    ended: bool = False

    def set_cached(self, cached: int) -> None:
        """So much of its prompt is there, as the node says, who knows it."""
        if self.prompt is not None:
            self.node_claims.ahead.add(self.prompt, -1)
            total = self.prompt.missing + self.prompt.cached
            self.prompt = PromptSize(max(0, total - cached), min(cached, total))
            self.node_claims.ahead.add(self.prompt)

    def prompt_finished(self, now: float) -> WorkTiming | None:
        """Its prompt is done."""
        prompt, self.prompt = self.prompt, None
        return self.node_claims.finish(prompt, now) if prompt else None

    def decode_began(self) -> None:
        """Its first token of many is there."""
        if not (self.decoding or self.ended):
            self.decoding = True
            self.node_claims.decoding += 1

    def end(self, now: float) -> None:
        """Nothing of it is there any more."""
        if self.ended:
            return
        self.ended = True
        if self.prompt is not None:
            self.node_claims.drop(self.prompt, now)
            self.prompt = None
        self.node_claims.requests -= 1
        self.node_claims.tokens -= self.tokens
        self.node_claims.decoding -= self.decoding


@dataclass(slots=True)
class Claims:
    """The shares of all nodes that were sent something lately."""

    shares: dict[str, NodeClaims] = field(default_factory=dict)
    most: int = MOST_IDLE

    def __len__(self) -> int:
        """Requests that are claimed, once for each node that they are at."""
        return sum(share.requests for share in self.shares.values())

    def claim(
        self, node: Node, tokens: int, now: float, prompt: PromptSize | None = None
    ) -> Claim:
        """One more request there; `prompt` is what it has to compute, if it does."""
        if node.node_id not in self.shares:
            self._forget_idle()
        share = self.shares.setdefault(node.node_id, NodeClaims())
        share.others(node)
        share.requests += 1
        share.most = max(share.most, share.requests)
        share.tokens += tokens
        if prompt is not None:
            share.begin(prompt, now)
        return Claim(share, tokens, prompt)

    def at(self, node: Node) -> NodeClaims:
        """What is there; not to be changed."""
        return self.shares.get(node.node_id, NOTHING)

    def others_at(self, node: Node) -> int:
        """Requests there that are not from this proxy."""
        share = self.shares.get(node.node_id)
        return share.others(node) if share else node.load.waiting + node.load.running

    def requests_at(self, node: Node) -> int:
        """Of this proxy and of others, running or waiting."""
        share = self.shares.get(node.node_id)
        return self.others_at(node) + (share.requests if share else 0)

    def _forget_idle(self) -> None:
        """What is idle is kept until here: the node's last word may still count ours."""
        if len(self.shares) >= self.most:
            self.shares = {key: one for key, one in self.shares.items() if one.requests}
