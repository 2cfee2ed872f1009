"""A bounded run of the fuzz of both servers: a few seeds. `make fuzz-servers` runs longer."""

from tests.fuzz.server_history import History
from tests.support.pair import Pair


async def test_both_servers_answer_random_histories_alike():
    async with Pair() as pair:
        for seed in range(1, 11):
            history = History(seed, pair)
            try:
                await history.run(50)
            except AssertionError as error:
                error.add_note("\n".join([f"seed {seed}", *history.steps]))
                raise
