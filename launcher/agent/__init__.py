"""The link agent: what runs on the batch node between the scheduler and the trainer.

This folder is copied to <run>/links/agent and run from there by the site's python (`python <run>/links/agent ...`), so
it is stdlib only, Python >= 3.9, and imports nothing else of the launcher. It decides whether a link is wanted at all,
holds the run's lock, works out the deadline, starts the trainer, passes signals on, and leaves a start beacon and an
exit record in <run>/events.
"""
