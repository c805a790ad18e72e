"""What reads an answer letter by letter, whatever the form of its calls."""
