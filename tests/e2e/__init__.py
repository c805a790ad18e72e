"""Real processes on real sockets."""
