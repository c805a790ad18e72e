"""What two nodes owe each other, as pure books: time and messages are arguments."""
