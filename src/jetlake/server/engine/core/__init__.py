"""What every part of the engine is given: clock, timers, group commit, usage counters, options."""
