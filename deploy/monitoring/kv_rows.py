"""The dashboard's rows about KV transfer between nodes, and about tiers below KV memory."""

from deploy.monitoring.panels import (
    NODE,
    PROXY,
    RATE,
    Panel,
    Query,
    Row,
    gauge,
    quantiles,
    rates,
    share,
)

P = "pdserve_proxy_"
LOST = f'sum(rate({P}stage_seconds_count{{{PROXY},stage="lost"}}{RATE}))'
ALL = f'sum(rate({P}stage_seconds_count{{{PROXY},stage=~"lost|transfer"}}{RATE}))'


KV = Row(
    "KV transfer",
    (
        Panel(
            "KV pulled by nodes",
            "Bytes per second that arrived at each node.",
            "Bps",
            (rates("pdserve_kv_transfer_bytes_total", NODE, "instance"),),
        ),
        Panel(
            "Transfer rate",
            "For each pull, its bytes divided by their time in transit: the speed of the link.",
            "Bps",
            quantiles(f"{P}kv_transfer_bytes_per_second"),
        ),
        Panel(
            "KV per answer",
            "Bytes transferred, divided by the answers that ended.",
            "bytes",
            (share(f"{P}kv_transfer_bytes_total", f"{P}answers_total", PROXY),),
        ),
        Panel(
            "KV that could not be used",
            "By reason; the prompts are run again, or the legs fail (`--kv-load-failure`).",
            "ops",
            (rates("pdserve_kv_load_failures_total", NODE, "reason"),),
        ),
        Panel(
            "Lost hand-overs",
            "Share of hand-overs whose prompt the decode node had to run itself.",
            "percentunit",
            (Query(f"({LOST} or vector(0)) / ({ALL} > 0)", "lost"),),
            most=1,
        ),
        Panel(
            "Hand-overs that moved",
            "To another decode node with the same ticket: the first was full or broke off.",
            "ops",
            (rates(f"{P}moves_total", PROXY, "instance"),),
        ),
        Panel(
            "Lateness of the transfer thread",
            "How long offers and leases are overdue; from 2 s on a node gets no new work.",
            "s",
            (gauge("pdserve_kv_sweep_late_seconds", NODE),),
        ),
        Panel(
            "Calls without the cluster's key",
            "Refused by nodes: from a proxy with another key or clock, or from a stranger.",
            "ops",
            (rates("pdserve_calls_refused_total", NODE, "reason"),),
        ),
        Panel(
            "Refused KV connections",
            "By KV ports: another key or clock, too many of one address, or another protocol.",
            "ops",
            (rates("pdserve_kv_connections_refused_total", NODE, "reason"),),
        ),
    ),
)
TIERS = Row(
    "KV tiers, if there are any",
    (
        Panel(
            "Working tiers",
            "A tier is 0 from its first error on; everything else continues.",
            "short",
            (gauge("pdserve_kv_tier_on", NODE, "tier"),),
        ),
        Panel(
            "Blocks in each tier",
            "KV blocks in the tier, over all nodes.",
            "short",
            (gauge("pdserve_kv_tier_blocks", NODE, "tier"),),
        ),
        Panel(
            "Blocks found in a tier",
            "Of the blocks that were not in KV memory: share that the tier had.",
            "percentunit",
            (
                Query(
                    f"sum by (tier) (rate(pdserve_kv_tier_loaded_total{{{NODE}}}{RATE})) / "
                    f"(sum by (tier) (rate(pdserve_kv_tier_loaded_total{{{NODE}}}{RATE})"
                    f" + rate(pdserve_kv_tier_missed_total{{{NODE}}}{RATE})) > 0)",
                    "{{tier}}",
                ),
            ),
            most=1,
        ),
        Panel(
            "Bytes into tiers",
            "Bytes written to each tier.",
            "Bps",
            (rates("pdserve_kv_tier_stored_bytes_total", NODE, "tier"),),
        ),
        Panel(
            "Bytes out of tiers",
            "Bytes read from each tier.",
            "Bps",
            (rates("pdserve_kv_tier_loaded_bytes_total", NODE, "tier"),),
        ),
    ),
)
