"""What a server has promised, with the positions of the disk's log between which each promise was made."""

import time
from dataclasses import dataclass, field

NEVER = float("inf")


@dataclass(frozen=True)
class Cut:
    """A power cut.

    Attributes:
        position: how many entries of the disk's log have happened.
        time: when that was, of the machine's steady clock.
        grace_s: how old a promise must be to count: what a server that syncs now and then says is no promise before.
    """

    position: int
    time: float
    grace_s: float = 0.0


@dataclass(slots=True)
class Act:
    """Something that was asked of the server.

    Attributes:
        sent: the position before it was asked for: nothing of it is on the disk before.
        done: the position when its answer was there.
        done_at: the time of that.
        state: how things are afterwards.
    """

    sent: int
    state: object
    done: float = NEVER
    done_at: float = NEVER
    is_at_once: bool = False

    def end(self, position):
        """Note the answer, which is there at this position."""
        self.done_at = time.monotonic()
        self.done = position

    def is_kept_by(self, cut):
        """Whether it must have outlived the cut."""
        return self.done <= cut.position and (self.is_at_once or self.done_at + cut.grace_s <= cut.time)

    def is_possible_at(self, cut):
        """Whether anything of it can be on the disk."""
        return self.sent <= cut.position


@dataclass
class Timeline:
    """The states that something went through, one after the other, each by an act.

    Args:
        position: returns the position of the disk's log.
        first: the state at the beginning.
        is_at_once: whether the answers are promises also where the server syncs now and then.
    """

    position: object
    first: object
    is_at_once: bool = False
    acts: list = field(default_factory=list)

    def __post_init__(self):
        act = self.begin(self.first)
        self.end(act)

    @property
    def state(self):
        """The state after the last act, if that was carried out."""
        return self.acts[-1].state

    def begin(self, state):
        """Ask for something that leads to a state."""
        self.acts.append(Act(self.position(), state, is_at_once=self.is_at_once))
        return self.acts[-1]

    def end(self, act):
        """Note the answer."""
        act.end(self.position())

    def allowed(self, cut):
        """Return the states that a cut may leave: the last one that was promised, and those that were asked for."""
        last = max(index for index, act in enumerate(self.acts) if not index or act.is_kept_by(cut))
        return [act.state for act in self.acts[last:] if act is self.acts[last] or act.is_possible_at(cut)]
