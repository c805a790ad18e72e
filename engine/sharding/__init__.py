"""What a rank has of a model that several processes run together, and how they add up."""
