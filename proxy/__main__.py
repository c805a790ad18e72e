"""`python -m proxy`: the proxy, as `pdserve proxy` starts it."""

from deploy.entry import main

main("proxy")
