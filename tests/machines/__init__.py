"""Machines with cables between them, on one machine: `python -m tests.machines` hurts those.

Each machine is a network of its own (a namespace of the kernel's) with an address and a cable
to a switch. A cable that is pulled is silent: nobody sees a reset, as with a machine that is
gone. All that ever runs on loopback sees resets.
"""
