"""A random history: one thing after the other happens to a world, good or bad, and what must hold is checked."""

import errno

from tests.simulation.world import World
from tests.support.faulty_disk import PowerCut


class History:
    """One history; a seed replays it exactly.

    What happens are methods, `weights` has their names; those of bad days are here.

    Attributes:
        weights: how often each of the things happens that may happen.
        cut_within: the power that is to go soon goes in one of so many changes of the disk.
        steps: the names of what has happened.
        crashes: how often the server died.
        disk_failed: whether the disk has refused something since the server was last started.
    """

    weights: dict[str, int]
    cut_within = 25

    def __init__(self, seed, make_world=World):
        self.world = make_world(seed)
        self.random = self.world.random
        self.steps = []
        self.crashes = 0
        self.disk_failed = False
        self._fault_left = 0  # steps

    def run(self, steps):
        for _ in range(steps):
            self.step()
        self.world.disk.cut_at = None
        if self._fault_left:
            self._crash(self.world.disk.kill)
        self.finish()

    def step(self):
        """One random thing happens, and everything is looked at."""
        (name,) = self.random.choices(list(self.weights), self.weights.values())
        self.steps.append(name)
        try:
            getattr(self, name)()
            self._pass_fault()
            self.check()
        except PowerCut:
            self._crash(self.world.disk.cut_power, safe=False)
            self.check()

    def _pass_fault(self):
        if self._fault_left:
            self._fault_left -= 1
            if not self._fault_left:
                # A disk that failed a sync leaves the server refusing: whoever runs it starts it anew.
                self._crash(self.world.disk.kill)

    # What a history adds

    def check(self):
        """Check what must hold after every step."""

    def stopped(self):
        """The server was stopped cleanly."""

    def crashed(self, *, safe):
        """The server is gone; `safe` tells whether everything that it had written is there."""

    def started(self):
        """A server was started on what the disk holds."""

    def finish(self):
        """Nothing fails any more: check what must hold at the end."""

    # Bad days

    def stop(self):
        """The server is stopped cleanly and started again."""
        if not self._fault_left:
            self.world.stop()
            self.stopped()
            self._start()

    def kill(self):
        """The process dies; what it had written is there."""
        self._crash(self.world.disk.kill)

    def cut_power(self):
        """The machine dies; what was synced is there."""
        self._crash(self.world.disk.cut_power, safe=False)

    def cut_power_soon(self):
        """The machine will die in the middle of something that it writes."""
        self.world.disk.cut_at = self.world.disk.operations + self.random.randint(1, self.cut_within)

    def fail_disk(self):
        """The disk is full or failing for some steps."""
        if self._fault_left:
            return
        number = self.random.choice([errno.ENOSPC, errno.EIO])
        operations = ("write",) if number == errno.ENOSPC else self.random.choice([("sync",), ("write", "sync")])
        chance = self.random.choice([0.3, 1.0])

        def fault(operation, path):
            if operation in operations and self.random.random() < chance:
                self.disk_failed = True
                raise OSError(number, "simulated")

        self.world.disk.fault = fault
        self._fault_left = self.random.randint(1, 6)

    def mend_disk(self):
        """The disk takes everything again, and the server goes on."""
        if self._fault_left:
            self._fault_left = 0
            self.world.disk.fault = None
            for _ in range(5):
                self.world.advance(1.1)
            self.disk_failed = False

    def _crash(self, how, *, safe=True):
        """The server is gone, and comes back on what the disk gives."""
        self.crashes += 1
        self._fault_left = 0
        self.world.disk.fault = None
        how()
        self.crashed(safe=safe and not self.disk_failed)
        self.disk_failed = False
        self._start()

    def _start(self):
        while True:
            try:
                self.world.start()
                break
            except PowerCut:
                self.world.disk.cut_power()
        self.started()
