"""How numbers are written: each form is read where a column has it, and refused elsewhere."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpexp.data.numerals import ANY, DATE, MONTHS, NUMBER, PER_CENT, YEARS, ZIP, number


@given(st.floats(allow_nan=False, allow_infinity=False, width=32))
def test_a_number_written_with_a_point_is_that_number(value):
    for text in (str(value), f" {value!r} ", f"{value:.17e}", f"{value:+}"):
        assert number(text) == float(text)


@given(st.floats(allow_nan=False, allow_infinity=False).filter(lambda value: abs(value) > 3.5e38))
def test_a_number_beyond_float32_is_refused(value):
    with pytest.raises(ValueError):
        number(str(value))


def read_strictly(text):
    """Read a number as every country does, or not at all: a reader that knows no forms."""
    kept = text.strip(" \t")
    if not kept.isascii() or any(c not in "0123456789.eE+-" for c in kept):
        return None
    try:
        return float(kept)
    except ValueError:
        return None


@given(st.text("0123456789.,'_ +-eE%\u00a0\u0663xX$€()/", min_size=1, max_size=8))
def test_a_text_is_its_number_whole_or_refused(text):
    expected = read_strictly(text.strip(" \t").removesuffix("%").removesuffix(" "))
    if not text.strip(" \t"):
        assert math.isnan(number(text, PER_CENT))
    elif expected is not None and abs(expected) < 1e38:
        assert number(text, PER_CENT) == expected
    else:
        with pytest.raises(ValueError):
            number(text, PER_CENT)


WRITTEN = {
    "1e3": (1000, NUMBER, PER_CENT),
    ".1189": (0.1189, NUMBER, PER_CENT),
    "5.": (5, NUMBER, PER_CENT),
    "-1e2": (-100, NUMBER, PER_CENT),
    "36": (36, NUMBER, PER_CENT, MONTHS, YEARS),
    "860": (860, NUMBER, PER_CENT, MONTHS, YEARS, ZIP),
    "2011": (2011, NUMBER, PER_CENT, MONTHS, YEARS, DATE),
    "12.5%": (12.5, PER_CENT),
    "12.5 %": (12.5, PER_CENT),
    " 36 months": (36, MONTHS),
    "1 month": (1, MONTHS),
    "3 years": (3, YEARS),
    "1 year": (1, YEARS),
    "10+ years": (10, YEARS),
    "< 1 year": (1, YEARS),
    "Dec-2011": (2011, DATE),
    "2011-12": (2011, DATE),
    "2012-02-29": (2012, DATE),
    "860xx": (860, ZIP),
    "8600x": (None,),
    "86xx": (None,),
    "5+ years": (None,),
    "< 5 years": (None,),
    "36+ months": (None,),
    "< 36 months": (None,),
    "1.5 years": (None,),
    "-1 years": (None,),
    "Xyz-2011": (None,),
    "Sept-2011": (None,),
    "2011-13": (None,),
    "2011-00": (None,),
    "2011-02-29": (None,),
    "2011-12-32": (None,),
    "2011-13-01": (None,),
    "1e39": (None,),
}


@pytest.mark.parametrize("text", WRITTEN)
def test_a_text_is_read_where_its_column_has_that_form_alone(text):
    expected, *where = WRITTEN[text]
    for forms in (NUMBER, PER_CENT, MONTHS, YEARS, DATE, ZIP):
        if forms in where:
            assert number(text, forms) == expected
        else:
            with pytest.raises(ValueError):
                number(text, forms)
    if where:
        assert number(text, ANY) == expected
