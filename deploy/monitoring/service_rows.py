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
    """Nodes that nothing keeps from work, as counted by the proxy that knows the most."""
    known = f'max by (model) ({STATES},role="{role}",state="ready"}})'
    return (Query(f"sum({known})", role),)


def stage_quantiles(stages: str) -> tuple[Query, ...]:
    """Quantiles of some stages of the timeline."""
    return quantiles_by("stage", f"{P}stage_seconds", f'{PROXY},stage=~"{stages}"')


CLIENTS = Row(
    "The service, as clients see it",
    (
        Panel(
            "Prefill nodes that accept work",
            "Ready, compatible, breaker closed. If fewer than you run, see the row Routing.",
            "short",
            ready("prefill"),
            kind="stat",
        ),
        Panel(
            "Decode nodes that accept work",
            "Ready, compatible, breaker closed. At 0 nothing is answered.",
            "short",
            ready("decode"),
            kind="stat",
        ),
        Panel(
            "Choices in flight",
            "Choices that are being answered; each of the `n` of a request counts.",
            "short",
            (Query(f"sum({P}requests_in_flight{{{PROXY}}})", "in flight"),),
            kind="stat",
        ),
        Panel(
            "Failed answers",
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
            "HTTP answers per second; a stream counts when it begins.",
            "reqps",
            (rates(f"{P}requests_total", PROXY, "endpoint"),),
        ),
        Panel(
            "Errors by status",
            "HTTP answers other than 2xx: 4xx are the client's fault, 5xx are ours.",
            "reqps",
            (rates(f"{P}requests_total", f'{PROXY},status!~"2.."', "status"),),
        ),
        Panel(
            "Answers by how they ended",
            "`failed` also counts streams that broke after their 200.",
            "reqps",
            (rates(f"{P}answers_total", PROXY, "finish"),),
        ),
        Panel(
            "Time to first token",
            "From the beginning of a choice, without time in the queue, to its first token.",
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
            "From the beginning of a choice to its end; long answers take long.",
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
            "Open client connections of each proxy.",
            "short",
            (gauge(f"{P}connections", PROXY),),
        ),
        Panel(
            "Connections refused or cut",
            "By reason; `full` and `crowded` mean that a limit of the proxy was reached.",
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
            "Mean over the choices that had the stage. Stages of two nodes overlap.",
            "s",
            (share(f"{P}stage_seconds_sum", f"{P}stage_seconds_count", PROXY, "stage"),),
        ),
        Panel(
            "Queue",
            "Until an engine admitted the prompt; `fetch` asks another node's cache before.",
            "s",
            stage_quantiles("queue|fetch"),
        ),
        Panel(
            "Prefill",
            "From there to the first token; `pool` is the same for pooled prompts.",
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
            "Tokenizing, and choosing nodes; a long `plan` means that no node accepted work.",
            "s",
            stage_quantiles("tokenize|plan"),
        ),
        Panel(
            "Measured time compared with the prediction",
            "1 is exact; far above 1, nodes are slower than routing has learned.",
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
            "As in `pdserve status`: what keeps a node from getting work, or `ready`.",
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
            "If two proxies differ, some nodes register with only one of them.",
            "short",
            (Query(f"sum by (instance, role) ({P}nodes{{{PROXY}}})", "{{instance}} {{role}}"),),
        ),
        Panel(
            "Attempts per answer",
            "1 if nothing is retried; without pooled answers.",
            "short",
            (Query(f"sum(rate({P}tries_total{{{PROXY}}}{RATE})) / {GENERATED}", "attempts"),),
        ),
        Panel(
            "Retries by reason",
            "Why the previous attempt failed; each retry is a pause for its client.",
            "ops",
            (rates(f"{P}retries_total", PROXY, "reason"),),
        ),
        Panel(
            "Failed calls by node",
            "By the address of the node at fault.",
            "ops",
            (rates(f"{P}node_failures_total", PROXY, "node"),),
        ),
        Panel(
            "Breakers that are not closed",
            "Of nodes, and of pairs of nodes between which KV was lost.",
            "short",
            (Query(f"sum by (of, state) ({P}breakers{{{PROXY}}})", "{{of}} {{state}}"),),
        ),
        Panel(
            "Breakers that opened",
            "Includes short faults that the gauge of open breakers may have missed.",
            "ops",
            (rates(f"{P}breakers_opened_total", PROXY, "of"),),
        ),
        Panel(
            "Registrations refused",
            "From a node with another key or clock, or a stranger at the discovery port.",
            "ops",
            (rates(f"{P}registrations_refused_total", PROXY, "reason"),),
        ),
        Panel(
            "Worker processes",
            "With `--workers`: how many are serving now; otherwise empty.",
            "short",
            (gauge(f"{P}workers", PROXY),),
        ),
    ),
)
ADMISSION = Row(
    "Admission",
    (
        Panel(
            "Queued requests",
            "Requests in the admission queue; 0 if no limit is set.",
            "short",
            (gauge(f"{P}queued_requests", PROXY),),
        ),
        Panel(
            "Time in the queue",
            "Of requests that were admitted, and of those that were not.",
            "s",
            quantiles(f"{P}queue_seconds"),
        ),
        Panel(
            "Refused by the admission gate",
            "By reason; rates and `key_queue_full` concern one client, others all clients.",
            "reqps",
            (rates(f"{P}refusals_total", PROXY, "reason"),),
        ),
        Panel(
            "Admitted choices",
            "Running choices that count towards limits.",
            "short",
            (gauge(f"{P}admitted_choices", PROXY),),
        ),
        Panel(
            "Queued and admitted tokens",
            "Prompts, and the estimated length of answers.",
            "suffix: tok",
            (
                Query(f"sum({P}queued_tokens{{{PROXY}}})", "queued"),
                Query(f"sum({P}admitted_tokens{{{PROXY}}})", "admitted"),
            ),
        ),
        Panel(
            "Request bodies",
            "Bytes that are kept until requests are answered; beyond 256 MiB they are refused.",
            "bytes",
            (gauge(f"{P}body_bytes", PROXY),),
        ),
    ),
)
