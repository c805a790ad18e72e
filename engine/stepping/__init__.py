"""One step: the batch that was chosen is run and booked, or was begun before it was chosen."""
