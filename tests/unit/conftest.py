"""Properties hold however slow the machine is."""

from hypothesis import settings

settings.register_profile("any machine", settings.get_profile(settings.get_current_profile_name()), deadline=None)
settings.load_profile("any machine")
