"""`python -m prefill_node`: one prefill node, as `pdserve prefill` starts it."""

from deploy.entry import main

main("prefill")
