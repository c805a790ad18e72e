"""`python -m bench`: a measurement, as `pdserve bench` makes it."""

from deploy.cli import main

main("bench")
