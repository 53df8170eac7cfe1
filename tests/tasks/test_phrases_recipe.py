"""The phrases recipe: its settings reach the data and the tokenizer."""

import pytest

from regard.errors import ConfigError
from regard.runs import override_settings
from regard.tasks import recipe

# ---- worked numbers


@pytest.mark.parametrize(
    ("digits", "pieces"), [(1, ["1", "9", "8", "7"]), (2, ["19", "87"]), (3, ["198", "7"])]
)
def test_numbers_are_split_into_tokens_of_so_many_digits(digits, pieces):
    data = override_settings(
        recipe("phrases"), ["vocab_texts=3000", f"digits_per_token={digits}"]
    ).data
    tokenizer = data.tokenizer(0)
    ids = tokenizer.encode("1987")
    assert [tokenizer.id_to_token(i) for i in ids] == pieces
    assert tokenizer.decode(ids) == "1987"


# ---- errors


@pytest.mark.usefixtures("users_view")
def test_zero_digits_per_token_raises():
    with pytest.raises(
        ConfigError, match="digits_per_token: needs a whole number of 1 or more, got 0"
    ):
        override_settings(recipe("phrases"), ["digits_per_token=0"])
