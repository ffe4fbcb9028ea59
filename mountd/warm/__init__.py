"""Releases brought to the cache before a job asks for them: jobs, schedules, access lists, bandwidth by time of day."""
