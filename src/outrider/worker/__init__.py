"""The worker: loops that run handlers, jobs, schedules and upkeep."""
