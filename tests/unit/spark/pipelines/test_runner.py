"""What a run tells of its queries, and in which order."""

from __future__ import annotations

import jetlake.blocking
from jetlake.spark.pipelines.runner import Run
from jetlake.spark.pipelines.settings import PipelineSettings


class EndingBatch:
    """A query whose first batch ends just after its progress was looked at."""

    id, name = "1", "q"

    def __init__(self):
        self.isActive, self.lastProgress = True, None
        self._looks = 0

    @property
    def recentProgress(self):
        self._looks += 1
        batch = {"batchId": 0, "numInputRows": 10, "durationMs": {}, "sources": [], "stateOperators": []}
        return [batch] if self._looks > 1 else []

    @property
    def status(self):
        message = "Waiting for data to arrive" if self._looks else "Processing new data"
        return {"message": message, "isTriggerActive": False, "isDataAvailable": False}

    def stop(self):
        self.isActive = False

    def exception(self):
        return None


class Told:
    """Collects what a run tells, and stops the run once it waits."""

    def __init__(self):
        self.lines = []
        self.run = None

    def note(self, text):
        self.lines.append(text)
        if text.startswith("waiting"):
            self.run.stopping.set()

    def batch(self, done):
        self.lines.append(f"batch {done.batch}")


def test_a_run_that_waits_has_told_of_every_batch():
    told = Told()
    with jetlake.blocking.Server(jetstream=False) as server:
        told.run = Run(None, PipelineSettings({"servers": server.url}, follow=True), (told,))
        with told.run.closing:
            told.run.watch([EndingBatch()])
    assert told.lines[1:3] == ["batch 0", "waiting for messages, 10 rows so far"]
