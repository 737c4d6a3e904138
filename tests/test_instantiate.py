"""What a config's node names is called with its settings."""

from dpexp.cli.instantiate import make


class Given:
    """Keeps what it is given."""

    def __init__(self, settings=None, parts=()):
        self.settings, self.parts = settings, parts


def test_settings_arrive_as_they_are_and_what_they_name_is_made():
    """Hydra takes milliseconds for each entry: a table may have thousands of columns."""
    target = f"{__name__}.{Given.__name__}"
    settings = {"age": [0, 120], "deep": {"words": ["a", "b"]}}
    node = {"_target_": target, "settings": settings, "parts": [{"_target_": target}]}
    made = make("own", node)
    assert type(made.settings["age"]) is list and made.settings == settings
    assert [type(part) for part in made.parts] == [Given]
    made.settings["age"].append(1)
    assert settings["age"] == [0, 120]
    assert make("own", node, settings=3).settings == 3


def test_what_is_to_be_called_later_keeps_its_settings():
    node = {"_target_": f"{__name__}.{Given.__name__}", "settings": 3, "_partial_": True}
    made = make("own", node)
    assert not isinstance(made, Given) and made().settings == 3
