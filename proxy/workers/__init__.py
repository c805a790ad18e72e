"""Several proxy processes behind one port: what they share, and who tells them."""
