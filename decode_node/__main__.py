"""`python -m decode_node`: one decode node, as `pdserve decode` starts it."""

from deploy.entry import main

main("decode")
