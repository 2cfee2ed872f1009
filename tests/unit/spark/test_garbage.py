"""Whose garbage collections are relieved of what was imported."""

import subprocess
import sys

import pytest

PROGRAM = """
import gc, sys
from importlib.util import find_spec
from jetlake.spark.garbage import spare_imports

if sys.argv[1:]:
    sys.modules["__main__"].__spec__ = find_spec(sys.argv[1])
spare_imports()
print(gc.get_freeze_count() > 0)
"""


@pytest.mark.parametrize(
    ("main", "is_spared"), [(["pyspark.daemon"], True), (["pyspark.sql"], False), ([], False)], ids=str
)
def test_processes_that_spark_forks_are_and_others_are_not(main, is_spared):
    done = subprocess.run([sys.executable, "-c", PROGRAM, *main], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(is_spared)]
