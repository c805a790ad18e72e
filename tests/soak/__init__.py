"""Many requests to a cluster of real processes; all but one pair are hurt all the time.

`python -m tests.soak --seed 1`, or `make soak`. CONTRIBUTING.md says what it promises.
"""
