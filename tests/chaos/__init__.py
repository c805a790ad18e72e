"""Everything dies at random, while clients come at a rate that nothing holds back.

`python -m tests.chaos --seed 1`, or `make chaos`. CONTRIBUTING.md says what it promises.
"""
