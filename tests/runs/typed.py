"""What people type, written by hand: dates, times and amounts with their meaning, and nonsense.

Neither list was made by the generator of the training data, nor changed to suit a model. The right
answers come from Babel, by the meaning that stands beside each text.
"""

from datetime import date, time
from decimal import Decimal
from typing import Any

from babel import Locale
from babel.dates import format_date, format_skeleton, format_time
from babel.lists import format_list
from babel.numbers import format_currency
from babel.units import format_unit

Meaning = tuple[Any, ...]

DAY, FULL, MONTH, BARE = "day", "full", "month", "bare"  # date; with weekday; no day; no year
TIME, AT, UNIT, SPAN, MONEY, AND, OR = "time", "at", "unit", "span", "money", "and", "or"
KM, M, CM, MILE = "length-kilometer", "length-meter", "length-centimeter", "length-mile"
KG, G, TONNE = "mass-kilogram", "mass-gram", "mass-tonne"
KMH, CELSIUS = "speed-kilometer-per-hour", "temperature-celsius"

NATURAL: list[tuple[str, Meaning]] = [
    # dates
    ("March 5th, 2024", (DAY, 2024, 3, 5)),
    ("5th of March 2024", (DAY, 2024, 3, 5)),
    ("5 March 2024", (DAY, 2024, 3, 5)),
    ("the 5th of March, 2024", (DAY, 2024, 3, 5)),
    ("mar 5 2024", (DAY, 2024, 3, 5)),
    ("Mar. 5, 2024", (DAY, 2024, 3, 5)),
    ("2024-03-05", (DAY, 2024, 3, 5)),
    ("Sept. 21, 1999", (DAY, 1999, 9, 21)),
    ("21 Sep 1999", (DAY, 1999, 9, 21)),
    ("september 21st 1999", (DAY, 1999, 9, 21)),
    ("JULY 4, 1976", (DAY, 1976, 7, 4)),
    ("4 July 1976", (DAY, 1976, 7, 4)),
    ("4th July 1976", (DAY, 1976, 7, 4)),
    ("25/12/2023", (DAY, 2023, 12, 25)),
    ("12/25/2023", (DAY, 2023, 12, 25)),
    ("1st january 2000", (DAY, 2000, 1, 1)),
    ("December 31, 1999", (DAY, 1999, 12, 31)),
    ("dec 31st, 1999", (DAY, 1999, 12, 31)),
    ("Feb 29 2024", (DAY, 2024, 2, 29)),
    ("Mon, Mar 4, 2024", (FULL, 2024, 3, 4)),
    ("Monday 4 March 2024", (FULL, 2024, 3, 4)),
    ("monday, march 4th, 2024", (FULL, 2024, 3, 4)),
    ("Fri 13 Oct 2023", (FULL, 2023, 10, 13)),
    ("Friday the 13th of October 2023", (FULL, 2023, 10, 13)),
    ("Thurs, 5 Nov 2026", (FULL, 2026, 11, 5)),
    ("tuesday 2 june 2015", (FULL, 2015, 6, 2)),
    ("Oct 2023", (MONTH, 2023, 10)),
    ("october 2023", (MONTH, 2023, 10)),
    ("Jan. 1985", (MONTH, 1985, 1)),
    ("5 march", (BARE, 3, 5)),
    ("March 5th", (BARE, 3, 5)),
    ("the 4th of July", (BARE, 7, 4)),
    ("24 Dec", (BARE, 12, 24)),
    ("december 24", (BARE, 12, 24)),
    # times
    ("3:05 PM", (TIME, 15, 5)),
    ("3:05pm", (TIME, 15, 5)),
    ("3.05 p.m.", (TIME, 15, 5)),
    ("15:05", (TIME, 15, 5)),
    ("3 PM", (TIME, 15, 0)),
    ("3pm", (TIME, 15, 0)),
    ("7am", (TIME, 7, 0)),
    ("7:30 a.m.", (TIME, 7, 30)),
    ("07:30", (TIME, 7, 30)),
    ("9:45 AM", (TIME, 9, 45)),
    ("noon", (TIME, 12, 0)),
    ("midnight", (TIME, 0, 0)),
    ("half past three", (TIME, 3, 30)),
    ("quarter to four", (TIME, 3, 45)),
    ("quarter past 8 pm", (TIME, 20, 15)),
    ("ten past six in the evening", (TIME, 18, 10)),
    ("8 o'clock", (TIME, 8, 0)),
    ("8 o’clock in the morning", (TIME, 8, 0)),
    ("23:59", (TIME, 23, 59)),
    ("12:15 AM", (TIME, 0, 15)),
    # both
    ("March 5th, 2024 at 3pm", (AT, (DAY, 2024, 3, 5), (TIME, 15, 0))),
    ("5 March 2024, 15:05", (AT, (DAY, 2024, 3, 5), (TIME, 15, 5))),
    ("3:05 pm on March 5, 2024", (AT, (DAY, 2024, 3, 5), (TIME, 15, 5))),
    ("Monday, 4 March 2024 at 9:30 am", (AT, (FULL, 2024, 3, 4), (TIME, 9, 30))),
    ("2024-03-05 15:05", (AT, (DAY, 2024, 3, 5), (TIME, 15, 5))),
    # durations
    ("two days", (SPAN, (2, "day"))),
    ("2 Days", (SPAN, (2, "day"))),
    ("twenty-one hours", (SPAN, (21, "hour"))),
    ("three weeks", (SPAN, (3, "week"))),
    ("nine hundred and forty-two seconds", (SPAN, (942, "second"))),
    ("Nine hundred and forty-two days", (SPAN, (942, "day"))),
    ("2 hours 30 minutes", (SPAN, (2, "hour"), (30, "minute"))),
    ("2h 30min", (SPAN, (2, "hour"), (30, "minute"))),
    ("45 mins", (SPAN, (45, "minute"))),
    ("10 secs", (SPAN, (10, "second"))),
    ("one hour and ten minutes", (SPAN, (1, "hour"), (10, "minute"))),
    ("5 yrs", (SPAN, (5, "year"))),
    ("one year, six months", (SPAN, (1, "year"), (6, "month"))),
    ("a week", (SPAN, (1, "week"))),
    ("half an hour", (SPAN, (30, "minute"))),
    # money
    ("$5", (MONEY, "5", "USD", "standard")),
    ("5 dollars", (MONEY, "5", "USD", "name")),
    ("5 USD", (MONEY, "5", "USD", "standard")),
    ("USD 5", (MONEY, "5", "USD", "standard")),
    ("€3.50", (MONEY, "3.50", "EUR", "standard")),
    ("3.50 €", (MONEY, "3.50", "EUR", "standard")),
    ("three euros and fifty cents", (MONEY, "3.50", "EUR", "name")),
    ("ten euros", (MONEY, "10", "EUR", "name")),
    ("£20", (MONEY, "20", "GBP", "standard")),
    ("20 pounds", (MONEY, "20", "GBP", "name")),
    ("$1,234.50", (MONEY, "1234.50", "USD", "standard")),
    ("$1234.50", (MONEY, "1234.50", "USD", "standard")),
    ("1 200 euros", (MONEY, "1200", "EUR", "name")),
    ("500 yen", (MONEY, "500", "JPY", "name")),
    ("CHF 80", (MONEY, "80", "CHF", "standard")),
    ("99.99 EUR", (MONEY, "99.99", "EUR", "standard")),
    # units
    ("5km", (UNIT, "5", KM)),
    ("5 kilometres", (UNIT, "5", KM)),
    ("5 Kms", (UNIT, "5", KM)),
    ("100 km/h", (UNIT, "100", KMH)),
    ("100 kph", (UNIT, "100", KMH)),
    ("20°C", (UNIT, "20", CELSIUS)),
    ("20 C", (UNIT, "20", CELSIUS)),
    ("20 degrees celsius", (UNIT, "20", CELSIUS)),
    ("5 kg", (UNIT, "5", KG)),
    ("2.5 kilos", (UNIT, "2.5", KG)),
    ("three litres", (UNIT, "3", "volume-liter")),
    ("250ml", (UNIT, "250", "volume-milliliter")),
    ("80 m²", (UNIT, "80", "area-square-meter")),
    ("60 W", (UNIT, "60", "power-watt")),
    ("16GB", (UNIT, "16", "digital-gigabyte")),
    ("ten miles", (UNIT, "10", MILE)),
    ("180cm", (UNIT, "180", CM)),
    # lists
    ("5 km and 10 km", (AND, (UNIT, "5", KM), (UNIT, "10", KM))),
    ("$5, $10 and $20", (AND, *((MONEY, n, "USD", "standard") for n in ("5", "10", "20")))),
    ("3pm or 4pm", (OR, (TIME, 15, 0), (TIME, 16, 0))),
    ("2 kg, 3 kg, or 5 kg", (OR, *((UNIT, n, KG) for n in ("2", "3", "5")))),
    ("March 5th and April 6th", (AND, (BARE, 3, 5), (BARE, 4, 6))),
]

NONSENSE = [
    # greetings, questions, things people say
    "Hello, how are you?",
    "good morning",
    "thanks!",
    "What time is it?",
    "Where is the station?",
    "I love you",
    "see you tomorrow",
    "How much does it cost?",
    "please call me back",
    "the cat sat on the mat",
    "to be or not to be",
    "Is it raining in London today?",
    "I would like two beers",
    "We arrived late because of the traffic.",
    "yes",
    "no way",
    "ok",
    "Happy birthday!",
    "Open the door",
    "my phone number is 555-0199",
    # names and places
    "John Smith",
    "Angela Merkel",
    "New York",
    "Lake Titicaca",
    "Apple Inc.",
    "Barack Obama was born in Hawaii",
    # code, addresses
    "import numpy as np",
    "for i in range(10):",
    "print('hello')",
    "SELECT * FROM users;",
    "x = y + 1",
    "https://example.com/index.html",
    "me@example.com",
    "<html><body></body></html>",
    "C:\\Windows\\System32",
    # other languages
    "Guten Tag, wie geht es dir?",
    "zwei Tage",
    "le 5 mars 2024",
    "¿Dónde está la biblioteca?",
    "dobrý den",
    "お元気ですか",
    "Это не по-английски",
    "tre giorni fa",
    # mash
    "asdfghjkl",
    "qwerty",
    "xkcd zzzt blorp",
    "jfkdls;a",
    "!!!???",
    "aaaaaaaaaaaa",
    "lorem ipsum dolor sit amet",
    "1a2b3c4d",
    # halves
    "half past",
    "the 5th of",
    "March",
    "kilometres",
    "and 3 hours",
    "$",
    "Monday or",
    # out of range
    "45 March 2024",
    "March 45th",
    "25:99",
    "2024-13-45",
    "31 February 2024",
    "13:75 pm",
    "0x1F hours",
]


def right(meaning: Meaning, language: str) -> str:
    """The meaning in a language, by Babel's own functions."""
    kind, *values = meaning
    if kind in (AND, OR):
        parts = [right(part, language) for part in values]
        return format_list(parts, "standard" if kind == AND else "or", language)
    if kind == AT:
        day, hour = (right(part, language) for part in values)
        return str(Locale.parse(language).datetime_formats["long"]).format(hour, day)
    if kind == DAY:
        return format_date(date(*values), "long", language)
    if kind == FULL:
        return format_date(date(*values), "full", language)
    if kind == MONTH:
        return format_skeleton("yMMMM", date(*values, 1), locale=language)
    if kind == BARE:
        return format_skeleton("MMMMd", date(2000, *values), locale=language)
    if kind == TIME:
        return format_time(time(*values), "short", locale=language)
    if kind == SPAN:
        parts = [format_unit(n, f"duration-{span}", "long", locale=language) for n, span in values]
        return format_list(parts, "standard", language)
    if kind == UNIT:
        number, unit = values
        number = Decimal(number) if "." in number else int(number)
        long = format_unit(number, unit, "long", locale=language)
        return format_unit(number, unit, "short", locale=language) if unit in long else long
    amount, currency, style = values
    return format_currency(Decimal(amount), currency, locale=language, format_type=style)
