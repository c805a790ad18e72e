"""Play histories until one breaks a promise: `python -m tests.planted.search`.

Ends with FOUND and says which promise it was, or with 0. The histories are the first ones of
tests/contract/test_hand_over_model.py, and more; nothing is shrunk, for that costs more than
the search.
"""

import logging
import sys

from hypothesis import Phase, Verbosity, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.contract.test_hand_over_model import HandOver, TestHandOver

FOUND = 3
HISTORIES = 800  # more than the test plays: a rare bug may need them, and they end at the first
CAUSES = (AssertionError, LookupError, ValueError)


def main() -> int:
    """A broken promise is an AssertionError; books that do not add up may show as others."""
    logging.disable()
    alone = settings(
        TestHandOver.settings,
        phases=[Phase.generate],
        max_examples=HISTORIES,
        verbosity=Verbosity.quiet,
        report_multiple_bugs=False,
        print_blob=False,
    )
    try:
        run_state_machine_as_test(HandOver, settings=alone)
    except CAUSES as error:
        sys.stdout.write(f"{type(error).__name__}: {error}\n")
        return FOUND
    return 0


if __name__ == "__main__":
    sys.exit(main())
