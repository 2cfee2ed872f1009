"""The systemd unit starts a command that exists, with a configuration that the server takes."""

from __future__ import annotations

from jetlake.server.config.assemble import assemble
from jetlake.server.config.flags import parse_flags
from tests.docs.blocks import ROOT, blocks


def test_the_unit_and_the_page_go_together(tmp_path):
    unit = (ROOT / "packaging" / "jetlake.service").read_text()
    assert "ExecStart=/opt/jetlake/bin/jetlake serve -c /etc/jetlake/server.conf\n" in unit
    (config,) = [block for block in blocks(ROOT / "docs" / "how-to" / "systemd.md") if block.file == "server.conf"]
    (tmp_path / "server.conf").write_text(config.code)
    options = assemble(parse_flags(["-c", str(tmp_path / "server.conf")])).options
    assert (options.port, options.http_port, options.jetstream.store_dir) == (4222, 8222, "/var/lib/jetlake")
    assert "StateDirectory=jetlake\n" in unit
