"""What is told of requests: counts, times, one line of a log for each."""
