"""From a checkpoint's files to weights in their place: read, fused, rounded, or made up."""
