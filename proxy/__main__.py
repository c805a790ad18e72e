"""`python -m proxy`: the proxy, as `pdserve proxy` starts it."""

from deploy.cli import main

main("proxy")
