"""`python -m prefill_node`: one prefill node, as `pdserve prefill` starts it."""

from deploy.cli import main

main("prefill")
