"""What a hand-over of KV costs, compared with the floors of the machine."""
