"""What the proxy's doors take and answer, for machines and for people."""
