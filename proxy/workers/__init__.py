"""Several proxy processes behind one port: the state they share, and the hub that relays it."""
