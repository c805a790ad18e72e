"""`python -m bench`: the same as `pdserve bench`."""

from deploy.entry import main

main("bench")
