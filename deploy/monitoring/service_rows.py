"""The dashboard's rows of what proxies see: clients, stages, routing and admission."""

from deploy.monitoring.panels import (
    PROXY,
    RATE,
    Panel,
    Query,
    Row,
    gauge,
    quantiles,
    quantiles_by,
    rates,
    share,
)

P = "pdserve_proxy_"
ANSWERS = f"sum(rate({P}answers_total{{{PROXY}}}{RATE}))"
GENERATED = f'sum(rate({P}answers_total{{{PROXY},finish!="pooled"}}{RATE}))'
STATES = f'{P}nodes_by_state{{{PROXY},model=~"$model"'


def ready(role: str) -> tuple[Query, ...]:
    """Nodes that nothing keeps from work, as the proxy that knows most of them has it."""
    known = f'max by (model) ({STATES},role="{role}",state="ready"}})'
    return (Query(f"sum({known})", role),)


def stage_quantiles(stages: str) -> tuple[Query, ...]:
    """Of some stages of the timeline."""
    return quantiles_by("stage", f"{P}stage_seconds", f'{PROXY},stage=~"{stages}"')


CLIENTS = Row(
    "The service, as clients see it",
    (
        Panel(
            "Prefill nodes that take work",
            "Ready, fit and with a closed breaker. Below what you run: see routing.",
            "short",
            ready("prefill"),
            kind="stat",
        ),
        Panel(
            "Decode nodes that take work",
            "Ready, fit and with a closed breaker. At 0 nothing is answered.",
            "short",
            ready("decode"),
            kind="stat",
        ),
        Panel(
            "Choices in flight",
            "Choices that are being answered; `n` of a request counts each.",
            "short",
            (Query(f"sum({P}requests_in_flight{{{PROXY}}})", "in flight"),),
            kind="stat",
        ),
        Panel(
            "Answers that failed",
            "Share of choices that failed for good, after all retries.",
            "percentunit",
            (
                Query(
                    f'(sum(rate({P}answers_total{{{PROXY},finish="failed"}}{RATE}))'
                    f" or vector(0)) / {ANSWERS}",
                    "failed",
                ),
            ),
            kind="stat",
            most=1,
        ),
        Panel(
            "Requests by endpoint",
            "HTTP answers a second; a stream counts when it begins.",
            "reqps",
            (rates(f"{P}requests_total", PROXY, "endpoint"),),
        ),
        Panel(
            "Errors by status",
            "HTTP answers that are not 2xx: 4xx are clients' own, 5xx are ours.",
            "reqps",
            (rates(f"{P}requests_total", f'{PROXY},status!~"2.."', "status"),),
        ),
        Panel(
            "Answers by their end",
            "`failed` also counts streams that broke after their 200.",
            "reqps",
            (rates(f"{P}answers_total", PROXY, "finish"),),
        ),
        Panel(
            "Time to first token",
            "From a choice's beginning, time in line not included, to its first token.",
            "s",
            quantiles(f"{P}time_to_first_token_seconds"),
        ),
        Panel(
            "Inter-token latency",
            "Mean time between the tokens of one answer; quantiles are over answers.",
            "s",
            quantiles(f"{P}time_per_output_token_seconds"),
        ),
        Panel(
            "End-to-end latency",
            "From a choice's beginning to its end; long answers take long.",
            "s",
            quantiles(f"{P}request_duration_seconds"),
        ),
        Panel(
            "Tokens by kind",
            "Tokens of choices that ended; `cached` and `fetched` are parts of `prompt`.",
            "suffix: tok/s",
            (rates(f"{P}tokens_total", PROXY, "kind"),),
        ),
        Panel(
            "Connections",
            "Connections of clients that are open, at each proxy.",
            "short",
            (gauge(f"{P}connections", PROXY),),
        ),
        Panel(
            "Connections refused or cut",
            "By reason; `full` and `crowded` mean that a limit of the proxy was met.",
            "cps",
            (rates(f"{P}connections_refused_total", PROXY, "reason"),),
        ),
    ),
)
TIME = Row(
    "Where the time goes",
    (
        Panel(
            "Mean time in each stage",
            "Over the choices that had the stage. Stages of two nodes overlap.",
            "s",
            (share(f"{P}stage_seconds_sum", f"{P}stage_seconds_count", PROXY, "stage"),),
        ),
        Panel(
            "Queue",
            "Until an engine took the prompt in; `fetch` asks another node's cache first.",
            "s",
            stage_quantiles("queue|fetch"),
        ),
        Panel(
            "Prefill",
            "From there to the first token; `pool` is the same where vectors are made.",
            "s",
            stage_quantiles("prefill|pool"),
        ),
        Panel(
            "Hand-over",
            "`reserve` waits for blocks at the decode node, `transfer` moves KV into them.",
            "s",
            stage_quantiles("reserve|transfer|no_room|lost"),
        ),
        Panel(
            "Decode",
            "From the KV's arrival to the last token.",
            "s",
            stage_quantiles("decode"),
        ),
        Panel(
            "The proxy itself",
            "Text to tokens, and the choice of nodes; long `plan`: no node took work.",
            "s",
            stage_quantiles("tokenize|plan"),
        ),
        Panel(
            "Measured time beside foretold",
            "1 is exact; far above it, nodes are slower than routing has learned.",
            "suffix: x",
            quantiles_by("of", f"{P}estimate_ratio", PROXY),
        ),
    ),
)
ROUTING = Row(
    "Routing",
    (
        Panel(
            "Nodes by role and state",
            "As `pdserve status` has them: what keeps a node from work, or `ready`.",
            "short",
            (
                Query(
                    f"sum by (role, state) (max by (model, role, state) ({STATES}}})) > 0",
                    "{{role}} {{state}}",
                ),
            ),
        ),
        Panel(
            "Nodes known to each proxy",
            "Where two proxies differ, nodes register with one of them only.",
            "short",
            (Query(f"sum by (instance, role) ({P}nodes{{{PROXY}}})", "{{instance}} {{role}}"),),
        ),
        Panel(
            "Tries per answer",
            "1 if nothing is tried twice; of answers that are tokens.",
            "short",
            (Query(f"sum(rate({P}tries_total{{{PROXY}}}{RATE})) / {GENERATED}", "tries"),),
        ),
        Panel(
            "Retries by reason",
            "What ended the try before; each costs its client a pause.",
            "ops",
            (rates(f"{P}retries_total", PROXY, "reason"),),
        ),
        Panel(
            "Failed calls by node",
            "The address of the node that is to blame.",
            "ops",
            (rates(f"{P}node_failures_total", PROXY, "node"),),
        ),
        Panel(
            "Breakers that are not closed",
            "Of nodes, and of pairs between which KV got lost.",
            "short",
            (Query(f"sum by (of, state) ({P}breakers{{{PROXY}}})", "{{of}} {{state}}"),),
        ),
        Panel(
            "Breakers that opened",
            "Short faults that the gauge beside may have missed.",
            "ops",
            (rates(f"{P}breakers_opened_total", PROXY, "of"),),
        ),
        Panel(
            "Registrations refused",
            "A node with another key or clock, or a stranger at the discovery port.",
            "ops",
            (rates(f"{P}registrations_refused_total", PROXY, "reason"),),
        ),
        Panel(
            "Worker processes",
            "With `--workers`: how many serve just now; else nothing.",
            "short",
            (gauge(f"{P}workers", PROXY),),
        ),
    ),
)
ADMISSION = Row(
    "Admission",
    (
        Panel(
            "Requests in line",
            "They wait at the gate; 0 where no limit is set.",
            "short",
            (gauge(f"{P}queued_requests", PROXY),),
        ),
        Panel(
            "Time in line",
            "Of those that were let in, and of those that were not.",
            "s",
            quantiles(f"{P}queue_seconds"),
        ),
        Panel(
            "Refused by the gate",
            "By reason; rates and `key_queue_full` are one client's, others are all's.",
            "reqps",
            (rates(f"{P}refusals_total", PROXY, "reason"),),
        ),
        Panel(
            "Choices at work",
            "Those that limits count.",
            "short",
            (gauge(f"{P}admitted_choices", PROXY),),
        ),
        Panel(
            "Tokens in line and at work",
            "Prompts, and answers as they are likely to be.",
            "suffix: tok",
            (
                Query(f"sum({P}queued_tokens{{{PROXY}}})", "in line"),
                Query(f"sum({P}admitted_tokens{{{PROXY}}})", "at work"),
            ),
        ),
        Panel(
            "Bodies of requests",
            "Bytes that are kept until they are answered; beyond 256 MiB they are refused.",
            "bytes",
            (gauge(f"{P}body_bytes", PROXY),),
        ),
    ),
)
