"""The engine's services: clock, timers, group commit, delivery queue, usage counters, options."""
