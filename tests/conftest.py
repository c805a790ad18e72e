"""What holds for every test."""

from hypothesis import settings

settings.register_profile("pdserve", deadline=None)  # a busy machine is no failure
settings.load_profile("pdserve")
