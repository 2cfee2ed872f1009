"""Work counted in executed lines, which do not depend on the machine."""

import sys


class ExecutedLines:
    """Counts the lines of this package that are executed in each call."""

    def __init__(self):
        self.most = 0
        self.total = 0
        self._count = 0

    def during(self, act):
        before, self._count = sys.gettrace(), 0
        sys.settrace(self._trace)
        try:
            act()
        finally:
            sys.settrace(before)
        self.most = max(self.most, self._count)
        self.total += self._count

    def _trace(self, frame, event, argument):
        self._count += event == "line"
        return self._trace if "jetlake" in frame.f_code.co_filename else None
