"""What lies below the KV memory: blocks that it forgets are kept, and come back by copy."""
