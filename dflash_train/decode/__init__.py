"""The reference decoder (specification 6): what a server should do, slowly and in the open, with counters."""
