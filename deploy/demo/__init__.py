"""The bundled demo model: what it was taught, how it was trained, and the checkpoint."""
