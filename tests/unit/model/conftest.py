"""Property tests judge results, never durations: the machine may be busy with other tests."""

from hypothesis import HealthCheck, settings

settings.register_profile("model", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("model")
