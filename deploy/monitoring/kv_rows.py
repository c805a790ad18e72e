"""The dashboard's rows of the KV between nodes, and below their memory."""

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
            "Bytes a second that arrived at each node.",
            "Bps",
            (rates("pdserve_kv_transfer_bytes_total", NODE, "instance"),),
        ),
        Panel(
            "Rate while KV is on its way",
            "Of each pull, its bytes by the time they took: what the link gives.",
            "Bps",
            quantiles(f"{P}kv_transfer_bytes_per_second"),
        ),
        Panel(
            "KV per answer",
            "Bytes that were moved, by answers that ended.",
            "bytes",
            (share(f"{P}kv_transfer_bytes_total", f"{P}answers_total", PROXY),),
        ),
        Panel(
            "KV that could not be used",
            "By reason; prompts are run again, or legs fail (`--kv-load-failure`).",
            "ops",
            (rates("pdserve_kv_load_failures_total", NODE, "reason"),),
        ),
        Panel(
            "Hand-overs that were lost",
            "Share whose prompt the decode node had to run itself.",
            "percentunit",
            (Query(f"({LOST} or vector(0)) / ({ALL} > 0)", "lost"),),
            most=1,
        ),
        Panel(
            "Hand-overs that moved on",
            "To another decode node with the same ticket: the first was full or broke.",
            "ops",
            (rates(f"{P}moves_total", PROXY, "instance"),),
        ),
        Panel(
            "Lateness of the transfer thread",
            "How long leases were not looked after; from 2 s on a node takes no work.",
            "s",
            (gauge("pdserve_kv_sweep_late_seconds", NODE),),
        ),
        Panel(
            "Calls without the cluster's key",
            "At nodes' doors: a proxy with another key or clock, or a stranger.",
            "ops",
            (rates("pdserve_calls_refused_total", NODE, "reason"),),
        ),
    ),
)
TIERS = Row(
    "KV tiers, where there are any",
    (
        Panel(
            "Tiers that work",
            "A tier is 0 from its first error on; all else goes on.",
            "short",
            (gauge("pdserve_kv_tier_on", NODE, "tier"),),
        ),
        Panel(
            "Blocks in each tier",
            "KV blocks that it holds, over all nodes.",
            "short",
            (gauge("pdserve_kv_tier_blocks", NODE, "tier"),),
        ),
        Panel(
            "Blocks found in a tier",
            "Of those that KV memory had not: share that the tier gave back.",
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
            "What was written, tier by tier.",
            "Bps",
            (rates("pdserve_kv_tier_stored_bytes_total", NODE, "tier"),),
        ),
        Panel(
            "Bytes out of tiers",
            "What was read, tier by tier.",
            "Bps",
            (rates("pdserve_kv_tier_loaded_bytes_total", NODE, "tier"),),
        ),
    ),
)
