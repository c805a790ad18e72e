"""The version of pdserve that is installed."""

from importlib import metadata

DISTRIBUTION = "pdserve"


def own_version() -> str:
    """ "0" where the code runs without having been installed."""
    try:
        return metadata.version(DISTRIBUTION)
    except metadata.PackageNotFoundError:
        return "0"
