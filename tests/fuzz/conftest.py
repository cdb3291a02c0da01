"""On a busy machine an example may take long: that is no failure. Whatever profile was chosen stays chosen."""

from hypothesis import settings

settings.register_profile("unhurried", parent=settings(), deadline=None)
settings.load_profile("unhurried")
