"""Quantities: exact parsing, one-line refusals, and formatted text that parses again."""

from fractions import Fraction

import pint
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.refusals import refusal_by, refused
from topologies.support.errors import InputError
from topologies.support.units import (
    _UNITS,
    LIMIT,
    format_bytes,
    format_rate,
    format_seconds,
    parse_bytes,
    parse_ps,
    parse_rate,
    parse_seconds,
    si,
    unit,
)

SIZES = {"B": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12, "PB": 10**15}
SIZES |= {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}


@pytest.mark.parametrize(("parse", "text", "expected"), [
    (parse_bytes, "0B", 0), (parse_bytes, "0.1GB", 100_000_000),
    (parse_bytes, " 1.5 GiB ", 3 * 2**29), (parse_bytes, ".5MB", 500_000),
    (parse_bytes, "1KB", 1000), (parse_bytes, "8Gbit", 10**9), (parse_bytes, "0.7GiB", 751_619_277),
    (parse_bytes, "4EiB", LIMIT), (parse_rate, "200Gbit/s", 25 * 10**9),
    (parse_rate, "200Gbps", 25 * 10**9), (parse_rate, "600MB/min", 10**7), (parse_rate, "1B/s", 1),
    (parse_ps, "1.5us", 1_500_000), (parse_ps, "1.5µs", 1_500_000), (parse_ps, "1ps", 1),
    (parse_seconds, "7d", 7 * 86_400),
])  # fmt: skip
def test_quantities_are_exact(parse, text, expected):
    assert parse(text) == expected


@pytest.mark.parametrize(("text", "message"), [
    ("1024", "size '1024' has no unit. Write it as 1024MiB or 1024GB."),
    ("", "size '' is not a number with a unit. Write it as 256MiB or 1GB."),
    ("infB", "size 'infB' is not a number with a unit. Write it as 256MiB or 1GB."),
    ("0x10B", "size '0x10B' is not a number with a unit. Write it as 256MiB or 1GB."),
    ("-1GB", "size '-1GB' is negative, the least is 0. Write it as 256MiB or 1GB."),
    ("1gb", "size '1gb': unknown unit gb. Did you mean GB?"),
    ("1mB", "size '1mB': unknown unit mB. Did you mean MB?"),
    ("1TFLOPS/s", "size '1TFLOPS/s': unknown unit TFLOPS/s. Did you mean TFLOP/s?"),
    ("5bananas", "size '5bananas': unknown unit bananas. Write it as 256MiB or 1GB."),
    ("1GB/s", "size '1GB/s' is in B/s, not in B. Write it as 256MiB or 1GB."),
    ("0.4B", "size '0.4B' is below the least, 1 B."),
    ("1.5B", "size '1.5B' is 1.5 bytes. Write whole bytes."),
    ("5EiB", "size '5EiB' is above the limit, 4.61e+18 B."),
    ("1e41B", "size '1e41B': 1e41 is beyond 1e±40. Correct it."),
])  # fmt: skip
def test_a_bad_size_is_refused_in_one_line(text, message):
    assert refusal_by(parse_bytes, text) == message


@pytest.mark.parametrize(("parse", "texts", "message"), [
    (parse_rate, ["0B/s"], r"^bandwidth '0B/s' is below the least, 1 B/s\.$"),
    (parse_rate, ["5GB"], r"^bandwidth '5GB' is in B, not in B/s\. Write it as 128"),
    (parse_seconds, ["5Ms", "horizon"], r"^horizon '5Ms': unknown unit Ms\. Did you mean ms\?$"),
    (parse_seconds, ["10m", "hold"], r"^hold '10m' is in m, not in s\. Write it as 10min\.$"),
    (parse_seconds, ["1km", "hold"], r"^hold '1km' is in m, not in s\. Write it as 20ms"),
    (parse_ps, ["0.1ps"], r"^latency '0\.1ps' is below the least, 1 ps\.$"),
    (parse_ps, ["365d"], r"^latency '365d' is above the limit, 4\.61e\+18 ps"),
    (parse_bytes, ["9" * 10_000_000 + "GB"], r"^.{,200}$"),  # refused at once and shown cut
    (parse_bytes, ["1e999999999GB"], r"^.{,200}$"),
])  # fmt: skip
def test_other_kinds_are_refused_in_their_own_words(parse, texts, message):
    refused(message, parse, *texts)


def _outcome(parse, text):
    try:
        return f"read {parse(text)}."
    except InputError as refusal:
        return str(refusal)


@given(st.text())
def test_any_text_is_read_or_refused_in_one_line(text):
    for parse in (parse_bytes, parse_rate, parse_seconds, parse_ps):
        outcome = _outcome(parse, text)
        assert outcome.endswith((".", "?"))
        assert "\n" not in outcome
        assert not outcome.startswith("read -")


@given(st.integers(0, 10**6), st.integers(0, 3), st.sampled_from(sorted(SIZES)))
def test_sizes_equal_exact_arithmetic(digits, places, name):
    exact = Fraction(digits, 10**places) * SIZES[name]
    text = f"{digits / 10**places:.{places}f}{name}"
    if exact.denominator == 1 and exact <= LIMIT:
        assert parse_bytes(text) == exact
    if exact.denominator == 1 and 1 <= exact <= LIMIT:
        assert parse_rate(text + "/s") == exact
    if digits < 1000 or (digits < 1024 and "i" in name):
        assert parse_bytes(format_bytes(digits * SIZES[name])) == digits * SIZES[name]


@given(st.integers(1, LIMIT // 2))
def test_any_quantity_survives_a_round_trip_to_four_digits(value):
    assert parse_bytes(format_bytes(value)) == pytest.approx(value, rel=5.1e-4)
    assert parse_rate(format_rate(value)) == pytest.approx(value, rel=5.1e-4)
    assert parse_ps(format_seconds(value / 10**12)) == pytest.approx(value, rel=5.1e-4, abs=1)


@pytest.mark.parametrize(("shown", "expected"), [
    (format_bytes(2**30), "1 GiB"), (format_bytes(1_234_567_890), "1.235 GB"),
    (format_bytes(0), "0 B"), (format_rate(0.5), "0.5 B/s"),
    (format_rate(12_500_000_000), "12.5 GB/s"), (format_seconds(1.75e-5), "17.5 us"),
    (format_seconds(0.99999), "1 s"), (format_seconds(604_800.0), "7 d"),
])  # fmt: skip
def test_text_for_people(shown, expected):
    assert shown == expected


def test_units_lead_to_si():
    assert si("1.50", "USD/h") == (Fraction(1, 2400), "USD/s")
    refused(r"^unknown unit GB/s/s\. Did you mean GB/s\?$", unit, "GB/s/s")
    refused(r"^'1\.2\.3' is not a number\. Write digits\.$", si, "1.2.3", "GB")


DEFINITIONS = """
byte = [information] = B
bit = byte / 8 = b
bps = bit / s
s = [time]
min = 60 * s
h = 60 * min
d = 24 * h
Hz = 1 / s
flop = [operation] = FLOP
OP = flop
joule = [energy] = J
watt = joule / s = W
watthour = watt * h = Wh
USD = [money]
m = [length]
count = [number]
ratio = [proportion]
K- = 1000
u- = 1e-6 = \N{MICRO SIGN}- = \N{GREEK SMALL LETTER MU}-
"""


def test_units_are_those_of_pint():
    registry = pint.UnitRegistry(None, non_int_type=Fraction)
    powers = {"k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18, "m": -3, "n": -9, "p": -12}
    prefixes = [f"{name}- = 1e{power}" for name, power in powers.items()]
    prefixes += [f"{name}i- = 1024 ** {power}" for power, name in enumerate("KMGTPE", 1)]
    for definition in [*DEFINITIONS.strip().split("\n"), *prefixes]:
        registry.define(definition)
    for text in [*_UNITS, "GiB/s", "Gbit/s", "USD/h", "pJ/bit", "us/km", "TFLOP/W", "B/FLOP"]:
        quantity = registry.parse_expression(text).to_base_units()
        factor, symbol = unit(text)
        assert factor == quantity.magnitude, text
        expected = f"{quantity.units:~C}"
        assert symbol == ("W" if expected == "J/s" else expected), text
