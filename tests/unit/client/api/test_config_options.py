"""Configurations from keyword arguments."""

import pytest

from jetlake.client.api.config_options import configured, merged
from jetlake.errors import InvalidOptionError
from jetlake.model.stream import StreamConfig


def test_streams_to_copy_may_be_named_alone():
    config = configured(StreamConfig, {"name": "S", "sources": ["A", {"name": "B", "filter_subject": "b.>"}]})
    assert [(source.name, source.filter_subject) for source in config.sources] == [("A", ""), ("B", "b.>")]
    assert configured(StreamConfig, {"name": "M", "mirror": "A"}).mirror.name == "A"
    assert merged(config, {"sources": ["C"]}).sources[0].name == "C"


def test_what_cannot_be_copied_is_refused():
    with pytest.raises(InvalidOptionError, match="mirror"):
        configured(StreamConfig, {"name": "M", "mirror": 5})
    for sources in (5, "ORDERS"):
        with pytest.raises(InvalidOptionError, match="sources must be a list"):
            configured(StreamConfig, {"name": "M", "sources": sources})
