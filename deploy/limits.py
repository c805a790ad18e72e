"""Raises the limit of open files: each connection needs one.

Most systems start with 1024, which one request with many choices can use up; the hard limit is
far higher.
"""

import resource

ENOUGH_FILES = 65_536


def raise_file_limit() -> None:
    """As far as this system allows, also for the processes we start."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = ENOUGH_FILES if hard == resource.RLIM_INFINITY else min(hard, ENOUGH_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
