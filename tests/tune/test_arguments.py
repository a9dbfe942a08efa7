"""One table says of every argument whether it is a setting of the run, and whether it is committed with the search."""

from __future__ import annotations

import dataclasses
from typing import Any

from hopyard import tune
from hopyard.storage import MemoryStore
from hopyard.tune.arguments import Arguments
from hopyard.tune.recipe import load_search, pickle_search
from hopyard.tune.search import Search


def committed(search: Search) -> dict[str, Any]:
    kind, arguments = load_search(
        *pickle_search(type(search), search.arguments, search._own_arguments()), "here"
    )
    assert kind == type(search).__name__
    return arguments


def test_every_argument_is_a_setting_and_is_committed_unless_the_table_says_otherwise(
    search: Any, make_rows: Any
) -> None:
    made = search(MemoryStore(), num_models=1, num_epochs=1)
    settings, arguments = made.fit(make_rows()).run.settings, committed(made)
    for each in dataclasses.fields(Arguments):
        if "where_given" in each.metadata:
            assert each.name not in settings
        elif each.metadata.get("setting", each) is not None:
            assert settings[each.name] == made.arguments.settings[each.name]
        assert (each.name in arguments) == each.metadata.get("committed", True)


def test_an_argument_that_the_table_gets_is_a_setting_and_is_committed(search: Any, make_rows: Any) -> None:
    @dataclasses.dataclass(frozen=True)
    class More(Arguments):
        another: int = 1
        of_this_call: Any = dataclasses.field(default=None, metadata={"setting": None, "committed": False})

    made = search(MemoryStore(), num_models=1, num_epochs=1)
    made.arguments = More(**vars(made.arguments), another=2)
    settings, arguments = made.fit(make_rows()).run.settings, committed(made)
    assert settings["another"] == arguments["another"] == 2
    assert "of_this_call" not in {*settings, *arguments}


def test_a_search_that_is_made_again_of_what_is_committed_has_the_same_settings(search: Any) -> None:
    made = search(
        MemoryStore(),
        num_models=2,
        num_epochs=3,
        seed=4,
        patience=5,
        reproducible=False,
        ragged="keep",
        replicates=2,
    )
    given = made.arguments
    again = getattr(tune, type(made).__name__)(
        **committed(made), backend=given.backend, store=MemoryStore(), validation=given.validation
    )
    assert again.arguments.settings == given.settings
    assert again.arguments.committed.keys() == given.committed.keys()
    assert not again.arguments.reproducible
    assert again.arguments.settings["replicates"] == 2
