"""The dashboard's rows of what nodes report about themselves."""

from deploy.monitoring.panels import (
    DECODE,
    NODE,
    PREFILL,
    RATE,
    Panel,
    Query,
    Row,
    gauge,
    rates,
    share,
)


def busy(where: str) -> tuple[Query, ...]:
    """Seconds of requests per second: the mean number of requests in the stage."""
    counter = f"pdserve_stage_seconds_total{{{where}}}"
    return (Query(f"sum by (stage) (rate({counter}{RATE}))", "{{stage}}"),)


def kv_memory(where: str) -> tuple[Query, ...]:
    """Share of the blocks that are used."""
    used, total = (f"pdserve_kv_blocks_{one}{{{where}}}" for one in ("used", "total"))
    return (Query(f"{used} / {total}", "{{instance}}"),)


def cached_share(where: str) -> tuple[Query, ...]:
    """Share of the prompt tokens that need not be run."""
    cached, computed = (
        f"sum by (instance) (rate(pdserve_prompt_tokens_{one}_total{{{where}}}{RATE}))"
        for one in ("cached", "computed")
    )
    return (Query(f"{cached} / ({cached} + {computed} > 0)", "{{instance}}"),)


def per_request(where: str) -> tuple[Query, ...]:
    """The rate of all requests, divided by how many run."""
    tokens = f"rate(pdserve_generation_tokens_total{{{where}}}{RATE})"
    running = f"avg_over_time(pdserve_requests_running{{{where}}}{RATE})"
    return (Query(f"{tokens} / ({running} > 0)", "{{instance}}"),)


PREFILL_NODES = Row(
    "Prefill nodes",
    (
        Panel(
            "Waiting prompts",
            "No sequence slot or no blocks yet; if it does not go down, more nodes are needed.",
            "short",
            (gauge("pdserve_requests_waiting", PREFILL),),
        ),
        Panel(
            "Running prompts",
            "Excludes prompts that wait to be fetched.",
            "short",
            (gauge("pdserve_requests_running", PREFILL),),
        ),
        Panel(
            "Prompt tokens run",
            "What the node computes; excludes what its caches had.",
            "suffix: tok/s",
            (rates("pdserve_prompt_tokens_computed_total", PREFILL, "instance"),),
        ),
        Panel(
            "Cached prompt tokens",
            "Share of prompt tokens that need not be run.",
            "percentunit",
            cached_share(PREFILL),
            most=1,
        ),
        Panel(
            "Prompt tokens from other nodes",
            "Fetched from a decode node that kept an earlier turn.",
            "suffix: tok/s",
            (rates("pdserve_prompt_tokens_fetched_total", PREFILL, "instance"),),
        ),
        Panel(
            "Requests in each stage",
            "Mean number of requests in the stage, summed over all prefill nodes.",
            "short",
            busy(PREFILL),
        ),
        Panel(
            "KV memory of prefill nodes",
            "Blocks of prompts that run or wait to be fetched; at 100 % other prompts wait.",
            "percentunit",
            kv_memory(PREFILL),
            most=1,
        ),
        Panel(
            "Preempted prompts",
            "Prompts that lost their blocks and are run again.",
            "ops",
            (rates("pdserve_preemptions_total", PREFILL, "instance"),),
        ),
        Panel(
            "Prefill legs that failed",
            "Refused by the engine, or with KV that was never fetched.",
            "ops",
            (rates("pdserve_legs_failed_total", PREFILL, "instance"),),
        ),
    ),
)
DECODE_NODES = Row(
    "Decode nodes",
    (
        Panel(
            "Batch size",
            "Running requests, including jobs whose KV is being transferred.",
            "short",
            (gauge("pdserve_requests_running", DECODE),),
        ),
        Panel(
            "Waiting jobs",
            "For a sequence slot or for blocks; they have not pulled their KV yet.",
            "short",
            (gauge("pdserve_requests_waiting", DECODE),),
        ),
        Panel(
            "KV memory of decode nodes",
            "Blocks that requests hold; unused blocks of the prefix cache count as free.",
            "percentunit",
            kv_memory(DECODE),
            most=1,
        ),
        Panel(
            "Generated tokens",
            "The sum over all answers of a node.",
            "suffix: tok/s",
            (rates("pdserve_generation_tokens_total", DECODE, "instance"),),
        ),
        Panel(
            "Tokens per request",
            "The rate of all, divided by how many run: how fast one answer grows.",
            "suffix: tok/s",
            per_request(DECODE),
        ),
        Panel(
            "Preemptions",
            "Requests preempted for lack of blocks, and recomputed: KV memory is too small.",
            "ops",
            (rates("pdserve_preemptions_total", DECODE, "instance"),),
        ),
        Panel(
            "Prompt tokens run by decode nodes",
            "Prompts without a prefill node, whose KV was lost, or that were preempted.",
            "suffix: tok/s",
            (rates("pdserve_prompt_tokens_computed_total", DECODE, "instance"),),
        ),
        Panel(
            "Requests in each stage of decode nodes",
            "Mean number of requests in the stage, summed over all decode nodes.",
            "short",
            busy(DECODE),
        ),
        Panel(
            "Finished answers by reason",
            "On all nodes; `length` reached a token limit, `pooled` are vectors.",
            "ops",
            (rates("pdserve_answers_finished_total", NODE, "reason"),),
        ),
        Panel(
            "Decode legs that failed",
            "Refused by the engine, or without the KV that they needed.",
            "ops",
            (rates("pdserve_legs_failed_total", DECODE, "instance"),),
        ),
        Panel(
            "Accepted draft tokens",
            "Speculative decoding: share of draft tokens that were accepted.",
            "percentunit",
            (
                share(
                    "pdserve_spec_decode_num_accepted_tokens_total",
                    "pdserve_spec_decode_num_draft_tokens_total",
                    NODE,
                ),
            ),
            most=1,
        ),
        Panel(
            "Steps saved per draft",
            "Speculative decoding: accepted tokens for each time that a draft was proposed.",
            "short",
            (
                share(
                    "pdserve_spec_decode_num_accepted_tokens_total",
                    "pdserve_spec_decode_num_drafts_total",
                    NODE,
                ),
            ),
        ),
    ),
)
