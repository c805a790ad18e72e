"""A stranger cannot fill the log."""

from kv_transfer.side_channel.log_throttle import LogThrottle


def test_a_flood_is_told_of_now_and_then_and_all_of_it() -> None:
    junk = LogThrottle(quiet_s=60)
    told = [count for second in range(121) if (count := junk.count_one(now=second))]
    assert told == [1, 60, 60]
