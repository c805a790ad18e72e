"""`python -m bench`: the same as `pdserve bench`."""

from deploy.cli import main

main("bench")
