"""What an HTTP door holds against clients that are hostile, broken, or asleep."""
