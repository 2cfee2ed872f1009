"""Pages whose programs use Spark: every program of the page runs as it stands and prints what is shown."""

from __future__ import annotations

import pytest

from tests.docs.blocks import ROOT, save_and_run

pytestmark = [pytest.mark.spark, pytest.mark.own_process]


@pytest.mark.parametrize(
    "page", ["README.md", "docs/start.md", "docs/how-to/pipelines/iceberg.md", "docs/how-to/spark-4.3.md"]
)
def test_programs_run_as_they_stand_and_print_what_is_shown(page, tmp_path):
    save_and_run(ROOT / page, tmp_path)
