"""Exact counts of the requests and tokens that this proxy has in progress at each node."""

from dataclasses import dataclass, field

from discovery.node import Node

MOST_IDLE = 4096
WINDOW = 8  # prompts; those of one batch end together, so one alone is not a measurement


@dataclass(frozen=True, slots=True)
class PromptSize:
    """A prompt to compute: `missing` tokens behind `cached` ones."""

    missing: int
    cached: int

    @property
    def pairs(self) -> int:
        """Pairs of a missing token and one before it: what attention computes."""
        return self.missing * (2 * self.cached + self.missing) // 2


@dataclass(slots=True)
class PromptWork:
    """The sum of several prompts."""

    prompts: int = 0
    tokens: int = 0
    pairs: int = 0

    def add(self, prompt: PromptSize, times: int = 1) -> None:
        """Add a prompt; with -1, remove it."""
        self.prompts += times
        self.tokens += times * prompt.missing
        self.pairs += times * prompt.pairs


@dataclass(frozen=True, slots=True)
class WorkTiming:
    """How long a node took for some work, without a pause."""

    work: PromptWork
    seconds: float


@dataclass(slots=True)
class NodeClaims:
    """What this proxy has at one node now.

    `decoding` of its `requests` have begun to decode there. `ahead`: prompts still to be
    computed, on which the node has worked since `working_since`. `tokens`: all tokens whose KV
    is or will be held there. `requests_then` and `tokens_then` are as of the node's last
    heartbeat.
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
        """Requests in the node's last heartbeat that this proxy did not send.

        Our own are subtracted: the most there were since the heartbeat before, so that a
        request that ended meanwhile is not attributed to another proxy.
        """
        if self.heard_at != node.heard_at:
            self.heard_at, self.tokens_then = node.heard_at, self.tokens
            self.requests_then, self.most = self.most, self.requests
        return max(0, node.load.waiting + node.load.running - self.requests_then)

    def unheard_tokens(self, node: Node) -> int:
        """Tokens that were claimed since the node last reported its free blocks."""
        self.others(node)
        return max(0, self.tokens - self.tokens_then)

    def begin(self, prompt: PromptSize, now: float) -> None:
        """Add a prompt to be run."""
        if not self.ahead.prompts:
            self.working_since = now
        self.ahead.add(prompt)

    def finish(self, prompt: PromptSize, now: float) -> WorkTiming | None:
        """Record that a prompt was run; returns a timing once `WINDOW` of them were, or all."""
        spent = max(0.0, now - self.working_since)
        self.ahead.add(prompt, -1)
        self.done.add(prompt)
        self.done_s, self.worked_s = self.done_s + spent, self.worked_s + spent
        self.working_since = max(self.working_since, now)  # its event may come late
        if self.ahead.prompts and self.done.prompts < WINDOW:
            return None
        measured = WorkTiming(self.done, self.done_s)
        self.done, self.done_s = PromptWork(), 0.0
        return measured

    def drop(self, prompt: PromptSize, now: float) -> None:
        """A prompt will not be run to its end, which voids the current measurement."""
        self.ahead.add(prompt, -1)
        self.done, self.done_s, self.working_since = PromptWork(), 0.0, now


NOTHING = NodeClaims()


@dataclass(slots=True, eq=False)
class Claim:
    """One request's part of a node's claims; repeated calls of a method count once."""

    node_claims: NodeClaims
    tokens: int
    prompt: PromptSize | None = None
    decoding: bool = False
    ended: bool = False

    def set_cached(self, cached: int) -> None:
        """The node reported how many tokens of the prompt were cached."""
        if self.prompt is not None:
            self.node_claims.ahead.add(self.prompt, -1)
            total = self.prompt.missing + self.prompt.cached
            self.prompt = PromptSize(max(0, total - cached), min(cached, total))
            self.node_claims.ahead.add(self.prompt)

    def prompt_finished(self, now: float) -> WorkTiming | None:
        """Record that the prompt was run."""
        prompt, self.prompt = self.prompt, None
        return self.node_claims.finish(prompt, now) if prompt else None

    def decode_began(self) -> None:
        """Record that the node sent its first token."""
        if not (self.decoding or self.ended):
            self.decoding = True
            self.node_claims.decoding += 1

    def end(self, now: float) -> None:
        """Record that the node no longer has anything of the request."""
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
    """The claims at all nodes that were sent requests recently."""

    shares: dict[str, NodeClaims] = field(default_factory=dict)
    most: int = MOST_IDLE

    def __len__(self) -> int:
        """Claims that have not ended, over all nodes."""
        return sum(share.requests for share in self.shares.values())

    def claim(
        self, node: Node, tokens: int, now: float, prompt: PromptSize | None = None
    ) -> Claim:
        """Add a request there; `prompt` is what the node has to compute, if anything."""
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
        """What is claimed there; read only."""
        return self.shares.get(node.node_id, NOTHING)

    def others_at(self, node: Node) -> int:
        """Requests at the node that other proxies sent."""
        share = self.shares.get(node.node_id)
        return share.others(node) if share else node.load.waiting + node.load.running

    def requests_at(self, node: Node) -> int:
        """All requests at the node, running or waiting."""
        share = self.shares.get(node.node_id)
        return self.others_at(node) + (share.requests if share else 0)

    def _forget_idle(self) -> None:
        """Idle entries are kept until here: a heartbeat may still count our requests."""
        if len(self.shares) >= self.most:
            self.shares = {key: one for key, one in self.shares.items() if one.requests}
