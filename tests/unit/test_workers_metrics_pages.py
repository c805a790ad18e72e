"""One page of metrics from those of several processes, some of which are gone."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from proxy.workers.metrics_pages import MetricsPages, merge_metrics


class Process:
    """What one worker counts."""

    def __init__(self) -> None:
        self.all = CollectorRegistry()
        self.requests = Counter("requests", "r", ["status"], registry=self.all)
        self.open = Gauge("requests_in_flight", "o", registry=self.all)
        self.nodes = Gauge("pdserve_proxy_nodes", "n", ["role"], registry=self.all)
        self.seconds = Histogram("seconds", "s", buckets=(1, 2), registry=self.all)

    def page(self) -> bytes:
        return generate_latest(self.all)


def test_counters_histograms_and_requests_are_added_up_and_nodes_are_not() -> None:
    one, two = Process(), Process()
    one.requests.labels("200").inc(3)
    two.requests.labels("200").inc(4)
    two.requests.labels("404").inc()
    for process, seconds in ((one, 0.5), (two, 1.5)):
        process.open.set(2)
        process.nodes.labels("decode").set(5)
        process.seconds.observe(seconds)
    page = samples(merge_metrics([one.page(), two.page()]))
    assert page["requests_total", "200"] == 7
    assert page["requests_total", "404"] == 1
    assert page["requests_in_flight", ""] == 4
    assert page["pdserve_proxy_nodes", "decode"] == 5
    assert page["seconds_bucket", "1.0"] == 1
    assert page["seconds_bucket", "+Inf"] == 2
    assert page["seconds_sum", ""] == 2.0


def test_a_page_of_one_is_as_it_was() -> None:
    one = Process()
    one.requests.labels('a "quoted"\nword').inc()
    one.seconds.observe(1.5)
    assert samples(merge_metrics([one.page()])) == samples(one.page())


def test_counters_never_go_back_when_a_worker_goes_and_what_was_open_is_gone() -> None:
    pages, process = MetricsPages(), Process()
    process.requests.labels("200").inc(3)
    process.open.set(2)
    process.seconds.observe(1.5)
    pages.update(0, process.page())
    assert pages.last(0) == process.page()
    pages.depart(0)
    assert pages.last(0) is None
    pages.depart(0)
    again = Process()
    again.requests.labels("200").inc()
    pages.update(0, again.page())
    pages.depart(0)
    page = samples(pages.departed)
    assert page["requests_total", "200"] == 4
    assert page["seconds_sum", ""] == 1.5
    assert ("requests_in_flight", "") not in page


def test_what_several_count_began_when_the_first_of_them_did() -> None:
    """Also after it has gone."""
    made, later = (b"# TYPE r_created gauge\nr_created %d.0\n" % at for at in (100, 200))
    merged = merge_metrics([later, made, later], cumulative_only=True)
    assert b"r_created 100.0" in merged


def samples(page: bytes) -> dict[tuple[str, str], float]:
    families = text_string_to_metric_families(page.decode())
    return {
        (sample.name, ",".join(sample.labels.values())): sample.value
        for family in families
        for sample in family.samples
        if not sample.name.endswith("_created")
    }
