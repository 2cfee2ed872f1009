"""`jetlake object`, `micro` and `schedule` on both servers."""

from __future__ import annotations

import pytest
from command_shell import output_of

from jetlake.cli.session import EXIT_FAILED, EXIT_USAGE


@pytest.fixture
async def files(shell):
    await shell.run("object add FILES --description papers --storage memory --metadata k=v")
    return shell


async def test_objects(files, tmp_path):
    file = tmp_path / "report.txt"
    file.write_bytes(b"content" * 100)
    out = await files.run(f"object put FILES {file} -H Kind:text --metadata by=me --chunk-size 300")
    assert out.startswith("FILES > report.txt is stored")
    await files.run("object put FILES - --name typed", stdin="by hand")
    info = await files.json("object info FILES report.txt")
    assert (info["size"], info["chunks"], info["headers"], info["metadata"]) == (
        700,
        3,
        {"Kind": ["text"]},
        {"by": "me"},
    )
    assert await files.json("object ls FILES --names") == ["report.txt", "typed"]
    assert "2 objects in FILES" in await files.run("object ls FILES")
    assert "papers" in await files.run("object ls")
    assert (await files.json("object ls"))[0]["bucket"] == "FILES"
    assert await files.run("object get FILES typed -O -") == "by hand"
    copy = tmp_path / "copy"
    assert await files.run(f"object get FILES report.txt -O {copy}") == (
        f"FILES > report.txt was written to {copy}: 700 B\n"
    )
    assert copy.read_bytes() == file.read_bytes()
    assert "--force" in await files.run(f"object get FILES typed -O {copy}", status=EXIT_USAGE)
    await files.run("object rm FILES typed --force")
    await files.run("object seal FILES --force")
    assert "Sealed: yes" in await files.run("object info FILES")
    assert "sealed" in await files.run("object put FILES - --name more", stdin="x", status=EXIT_FAILED)
    await files.run("object del FILES --force")
    assert "No object stores" in await files.run("object ls")


async def test_watched_objects(files):
    await files.run("object put FILES - --name a", stdin="x")
    watching = await files.start("object watch FILES --count 1", b"Watching")
    assert "PUT FILES > a: 1 B in 1 chunks" in await output_of(watching)


async def test_services(shell, server, clients):
    client = await clients(server)
    async with client.service("shop", "1.2.3", description="sells tea") as shop:
        shop.add_endpoint("price", lambda request: b"42")
        await client.flush()
        await client.services().request("price")
        assert "sells tea" in await shell.run("micro ls")
        assert "price: price, queue q" in await shell.run("micro info shop")
        assert (await shell.json(f"micro stats shop {shop.id}"))[0]["endpoints"][0]["num_requests"] == 1


async def test_schedules(shell):
    await shell.run("stream add JOBS --subjects 'jobs.>' --allow-schedules --allow-msg-ttl --allow-direct")
    out = await shell.run("schedule add jobs.plan.clean clean --target jobs.run --every 1h -H K:V")
    assert out == "Schedule jobs.plan.clean is stored in JOBS as sequence 1\n"
    await shell.run("schedule add jobs.plan.once x --target jobs.run --in 1h --ttl 1m")
    await shell.json("schedule add jobs.plan.mail x --target jobs.run --cron '0 0 7 * * *' --tz Europe/Berlin")
    await shell.run("pub jobs.run 'not a schedule' -J")
    listed = {one["subject"]: one for one in await shell.json("schedule ls JOBS")}
    assert listed.keys() == {"jobs.plan.clean", "jobs.plan.once", "jobs.plan.mail"}
    assert (listed["jobs.plan.mail"]["schedule"], listed["jobs.plan.mail"]["time_zone"]) == (
        "0 0 7 * * *",
        "Europe/Berlin",
    )
    assert "@every 1h" in await shell.run("schedule ls JOBS --filter jobs.plan.clean")
    assert "is ended" in await shell.run("schedule rm JOBS jobs.plan.clean --force")
    assert "has no schedule on jobs.run" in await shell.run("schedule rm JOBS jobs.run --force", status=EXIT_FAILED)
    assert len(await shell.json("schedule ls JOBS")) == 2


@pytest.mark.parametrize(
    ("line", "status", "text"),
    [
        ("object get NOPE x", EXIT_FAILED, "object store NOPE not found (10059). See what there is: jetlake object ls"),
        ("object info FILES nope", EXIT_FAILED, "has no object 'nope'"),
        ("object put FILES -", EXIT_USAGE, "--name"),
        ("object put FILES /nowhere/at/all", EXIT_FAILED, "No such file"),
        ("object ls FILES", 0, "No objects in FILES"),
        ("micro info nope", EXIT_FAILED, "no service nope answers"),
        ("micro ls", 0, "No services answer"),
        ("schedule add a b --target c", EXIT_USAGE, "give one of"),
        ("schedule add a b --target c --every 1ms", EXIT_USAGE, "at least one second"),
        ("schedule ls OBJ_FILES", 0, "No schedules"),
    ],
)
async def test_bad_input_is_answered_in_one_line(files, line, status, text):
    assert text in await files.run(line, status=status)
