"""What is measured: each module here has `rows(shape)`, and is found by being here."""
