"""The dashboard's rows of what nodes say of themselves."""

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
    """Seconds of requests per second: so many were in the stage at a time."""
    counter = f"pdserve_stage_seconds_total{{{where}}}"
    return (Query(f"sum by (stage) (rate({counter}{RATE}))", "{{stage}}"),)


def kv_memory(where: str) -> tuple[Query, ...]:
    """Used blocks of all."""
    used, total = (f"pdserve_kv_blocks_{one}{{{where}}}" for one in ("used", "total"))
    return (Query(f"{used} / {total}", "{{instance}}"),)


def cached_share(where: str) -> tuple[Query, ...]:
    """Of the prompt tokens that came, those that need not be run."""
    cached, computed = (
        f"sum by (instance) (rate(pdserve_prompt_tokens_{one}_total{{{where}}}{RATE}))"
        for one in ("cached", "computed")
    )
    return (Query(f"{cached} / ({cached} + {computed} > 0)", "{{instance}}"),)


def per_request(where: str) -> tuple[Query, ...]:
    """The rate of all, by how many ran."""
    tokens = f"rate(pdserve_generation_tokens_total{{{where}}}{RATE})"
    running = f"avg_over_time(pdserve_requests_running{{{where}}}{RATE})"
    return (Query(f"{tokens} / ({running} > 0)", "{{instance}}"),)


PREFILL_NODES = Row(
    "Prefill nodes",
    (
        Panel(
            "Prompts that wait",
            "No seat or no blocks yet; if it does not go down, more nodes are needed.",
            "short",
            (gauge("pdserve_requests_waiting", PREFILL),),
        ),
        Panel(
            "Prompts that run",
            "Those that wait to be fetched are not among them.",
            "short",
            (gauge("pdserve_requests_running", PREFILL),),
        ),
        Panel(
            "Prompt tokens run",
            "What the node computes; what its caches had is not in it.",
            "suffix: tok/s",
            (rates("pdserve_prompt_tokens_computed_total", PREFILL, "instance"),),
        ),
        Panel(
            "Prompt tokens that were cached",
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
            "How many at a time, on average over all prefill nodes.",
            "short",
            busy(PREFILL),
        ),
        Panel(
            "KV memory of prefill nodes",
            "Blocks of prompts that run or wait to be fetched; at 100 % others wait.",
            "percentunit",
            kv_memory(PREFILL),
            most=1,
        ),
        Panel(
            "Prompts put back",
            "Preemptions: prompts that lost their blocks and are run again.",
            "ops",
            (rates("pdserve_preemptions_total", PREFILL, "instance"),),
        ),
        Panel(
            "Prefill legs that failed",
            "Refused by the engine, or with KV that nobody fetched.",
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
            "Requests that run, jobs whose KV is on its way among them.",
            "short",
            (gauge("pdserve_requests_running", DECODE),),
        ),
        Panel(
            "Jobs that wait",
            "For a seat or for blocks; they have not pulled their KV yet.",
            "short",
            (gauge("pdserve_requests_waiting", DECODE),),
        ),
        Panel(
            "KV memory of decode nodes",
            "Blocks that requests hold; cached ones that nobody uses count as free.",
            "percentunit",
            kv_memory(DECODE),
            most=1,
        ),
        Panel(
            "Tokens generated",
            "All answers of a node together.",
            "suffix: tok/s",
            (rates("pdserve_generation_tokens_total", DECODE, "instance"),),
        ),
        Panel(
            "Tokens of one request",
            "The rate of all by how many run: how fast one answer grows.",
            "suffix: tok/s",
            per_request(DECODE),
        ),
        Panel(
            "Preemptions",
            "Requests put back for lack of blocks, and computed again: KV is too small.",
            "ops",
            (rates("pdserve_preemptions_total", DECODE, "instance"),),
        ),
        Panel(
            "Prompt tokens run by decode nodes",
            "Prompts without a prefill node, or whose KV was lost or put back.",
            "suffix: tok/s",
            (rates("pdserve_prompt_tokens_computed_total", DECODE, "instance"),),
        ),
        Panel(
            "Requests in each stage of decode nodes",
            "How many at a time, on average over all decode nodes.",
            "short",
            busy(DECODE),
        ),
        Panel(
            "Answers that ended, by reason",
            "At all nodes; `length` met a limit of tokens, `pooled` are vectors.",
            "ops",
            (rates("pdserve_answers_finished_total", NODE, "reason"),),
        ),
        Panel(
            "Decode legs that failed",
            "Refused by the engine, or without the KV they asked for.",
            "ops",
            (rates("pdserve_legs_failed_total", DECODE, "instance"),),
        ),
        Panel(
            "Foretold tokens that came",
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
            "Steps saved by each draft",
            "Speculative decoding: accepted tokens for each time tokens were foretold.",
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
