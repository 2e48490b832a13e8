"""Ray on a busy machine."""

import ray


def start_ray(**options):
    """Tries again, because Ray gives itself no more than 30 seconds, whatever else the machine does."""
    for attempt in range(3):
        try:
            return ray.init(include_dashboard=False, **options)
        except Exception as error:
            if attempt == 2 or "timed out during startup" not in str(error):
                raise
            ray.shutdown()
