"""What a hand-over of KV costs, beside the floors of the machine it runs on."""
