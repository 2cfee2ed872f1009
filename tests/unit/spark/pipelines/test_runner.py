"""What a run tells of its queries, and in which order."""

from __future__ import annotations

import pytest

import jetlake.blocking
from jetlake.errors import ConfigError, SparkError
from jetlake.spark.pipelines.runner import Run, run_pipeline
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


@pytest.mark.parametrize(("counted", "rows"), [({}, 10), ({0: 7}, 7)], ids=["by Spark", "by the pipeline"])
def test_a_run_that_waits_has_told_of_every_batch(counted, rows):
    told = Told()
    with jetlake.blocking.Server(jetstream=False) as server:
        told.run = Run(None, PipelineSettings({"servers": server.url}, follow=True), (told,), counted=counted)
        with told.run.closing:
            told.run.watch([EndingBatch()])
    assert told.lines[1:3] == ["batch 0", f"waiting for messages, {rows} rows so far"]


class Pipeline:
    """A pipeline that is stopped, or not, and then fails."""

    name, prints = "p", False

    def __init__(self, *, stopped, error):
        self.stopped, self.error = stopped, error

    def facts(self, settings):
        return {}

    def check(self, settings):
        pass

    def run(self, run):
        if self.stopped:
            run.stopping.set()
        raise self.error


def test_what_a_stop_cuts_off_is_abandoned_and_not_failed():
    lost = SparkError("Stream closed")
    summary = run_pipeline(Pipeline(stopped=True, error=lost), None, PipelineSettings({}))
    assert summary.state == "stopped" and not summary.error
    assert dict(summary.facts) == {"abandoned": "the work under way, which the next run does again: Stream closed"}
    for stopped, error in ((False, lost), (True, ConfigError("a wrong option"))):
        with pytest.raises(type(error)):
            run_pipeline(Pipeline(stopped=stopped, error=error), None, PipelineSettings({}))
