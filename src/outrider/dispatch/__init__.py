"""Running subscriptions: wake, take, handle, settle."""
