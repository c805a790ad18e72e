"""The command's first lines: Ctrl-C before it runs ends it without a word."""

import signal

INTERRUPTED = 130  # cyclopts' status for a command that was running


def main(*command: str) -> None:
    """Run the command line; see deploy/cli.py."""
    ours = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # or `nohup`'s
    if ours:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from deploy.cli import main as run  # takes a third of a second

    if ours:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        run(*command)
    except KeyboardInterrupt:  # its settings were still read
        raise SystemExit(INTERRUPTED) from None
