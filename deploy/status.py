"""`pdserve status`: what a proxy says of its cluster, as a table."""

ANSWER_S = 5.0
