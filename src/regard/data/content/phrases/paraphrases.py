"""English paraphrases of facts: ordinals, abbreviations, number words, symbols, any order.

The split depends on the fact, not on its form, so no test fact occurs in training in any form. A
time without am or pm is on the 24-hour clock.
"""

import re
from datetime import date
from typing import Any

from regard.data.content.phrases.facts import COMPOSITE_KINDS, Fact, HashRng, fact_split

MONTH_NAMES = (
    "January Jan Jan.|February Feb Feb.|March Mar Mar.|April Apr Apr.|May May May|June Jun June|"
    "July Jul July|August Aug Aug.|September Sep Sept Sept.|October Oct Oct.|November Nov Nov.|"
    "December Dec Dec."
)
WEEKDAY_NAMES = (
    "Monday Mon Mon.|Tuesday Tue Tues Tue.|Wednesday Wed Weds Wed.|Thursday Thu Thurs Thu.|"
    "Friday Fri Fri.|Saturday Sat Sat.|Sunday Sun Sun."
)
DATE_FORMS = (  # d 5, dd 05, o 5th, w fifth, M a month in any form, m 3, mm 03, y 2024, yy 24
    *("{M} {d}, {y}", "{M} {d} {y}", "{M} {o}, {y}", "{M} {o} {y}", "{M} the {o}, {y}"),
    *("{d} {M} {y}", "{d} {M}, {y}", "{o} {M} {y}", "{o} {M}, {y}", "{o} of {M} {y}"),
    *("{o} of {M}, {y}", "the {o} of {M} {y}", "the {o} of {M}, {y}", "the {o} {M} {y}"),
    *("{d} of {M} {y}", "{M} {w}, {y}", "the {w} of {M} {y}", "{y} {M} {d}", "{M} {d} '{yy}"),
    *("{d}-{M}-{y}", "{y}-{mm}-{dd}", "{y}-{mm}-{dd}", "{y}/{mm}/{dd}", "{dd}.{mm}.{y}"),
    *("{d}.{m}.{y}", "{d}. {M} {y}"),
)
SLASHED_DATE_FORMS = ("{d}/{m}/{y}", "{dd}/{mm}/{y}", "{m}/{d}/{y}", "{mm}/{dd}/{y}")
DAY_FORMS = (
    *("{M} {d}", "{M} {o}", "{d} {M}", "{o} {M}", "{o} of {M}", "the {o} of {M}", "{M} the {o}"),
    *("the {w} of {M}", "{M} {w}", "{d}. {M}", "the {o} {M}"),
)
MONTH_YEAR_FORMS = (
    *("{M} {y}", "{M}, {y}", "{M} of {y}", "{M} {y}", "{y}-{mm}", "{mm}/{y}", "{M} '{yy}"),
)
CLOCK_FORMS = ("{h}:{mm}", "{hh}:{mm}", "{hh}:{mm}", "{h}h{mm}", "{hh}:{mm}h", "{hh}:{mm} h")
DATETIME_FORMS = (
    *("{d} at {t}", "{d}, {t}", "{d} {t}", "{t} on {d}", "{t}, {d}", "{t} {d}", "at {t} on {d}"),
)

# (symbols, names): only symbols may follow the number without a space
UNIT_NAMES = {
    "length-kilometer": ("km kms", "kilometers|kilometres|kilometer|kilometre|km"),
    "length-meter": ("m", "meters|metres|meter|metre|mtrs"),
    "length-centimeter": ("cm cms", "centimeters|centimetres|centimeter|centimetre|cm"),
    "length-mile": ("mi", "miles|mile"),
    "mass-kilogram": ("kg kgs", "kilograms|kilos|kilogram|kilo|kilogrammes|kg"),
    "mass-gram": ("g gr", "grams|grammes|gram"),
    "mass-tonne": ("t", "tonnes|metric tons|tonne|metric ton|metric tonnes"),
    "volume-liter": ("l ltr", "liters|litres|liter|litre"),
    "volume-milliliter": ("ml", "milliliters|millilitres|milliliter|millilitre|mls"),
    "area-square-meter": ("m² m2 sqm", "square meters|square metres|sq m|sq. m|square m"),
    "area-square-kilometer": (
        "km² km2 sqkm",
        "square kilometers|square kilometres|sq km|sq. km|square km",
    ),
    "area-hectare": ("ha", "hectares|hectare"),
    "temperature-celsius": (
        "°C °C °C C",
        "degrees Celsius|degrees C|deg C|Celsius|degrees centigrade|degree Celsius|C|° C",
    ),
    "speed-kilometer-per-hour": (
        "km/h kph kmh kmph",
        "kilometers per hour|kilometres per hour|km per hour|kilometers an hour|kilometres an hour",
    ),
    "power-watt": ("W", "watts|watt"),
    "power-kilowatt": ("kW", "kilowatts|kilowatt"),
    "energy-kilowatt-hour": ("kWh kwhs", "kilowatt-hours|kilowatt hours|kilowatt-hour"),
    "digital-gigabyte": ("GB gig", "gigabytes|gigabyte|gigs|GBs"),
    "frequency-megahertz": ("MHz", "megahertz|MHz"),
    "electric-volt": ("V", "volts|volt"),
}
DURATION_NAMES = {
    "duration-second": ("s sec secs", "seconds|secs|sec|second"),
    "duration-minute": ("min mins", "minutes|mins|min|minute"),
    "duration-hour": ("h hr hrs", "hours|hrs|hr|hour"),
    "duration-day": ("d", "days|day"),
    "duration-week": ("wk wks", "weeks|wks|week"),
    "duration-month": ("mo mos", "months|mths|month"),
    "duration-year": ("yr yrs y", "years|yrs|year"),
}
HALF_UNITS = {("hour", 30), ("minute", 30), ("day", 12), ("year", 6)}  # half, in the next unit
CURRENCY_NAMES = {  # (symbols, codes, names, names of a hundredth)
    "EUR": ("€", "EUR", "euros|euro", "cents|cent"),
    "USD": ("$|US$", "USD", "dollars|US dollars|bucks|dollar|American dollars", "cents|cent"),
    "GBP": ("£", "GBP", "pounds|British pounds|pounds sterling|pound|quid", "pence|p"),
    "CHF": ("Fr.|SFr.", "CHF", "Swiss francs|francs|Swiss franc", "centimes|rappen"),
    "JPY": ("¥|JP¥", "JPY", "yen|Japanese yen", ""),
    "CNY": ("CN¥", "CNY|RMB", "yuan|Chinese yuan|renminbi", "fen"),
    "INR": ("₹|Rs.|Rs", "INR", "rupees|Indian rupees|rupee", "paise"),
    "BRL": ("R$", "BRL", "reais|Brazilian reals|reals|Brazilian reais", "centavos"),
    "PLN": ("zł", "PLN", "zlotys|Polish zlotys|zloty|złoty", "groszy"),
    "CZK": ("Kč", "CZK", "korunas|Czech korunas|Czech crowns|crowns|koruna", "hellers"),
    "TRY": ("₺", "TRY", "lira|Turkish lira|liras|Turkish liras", "kurus"),
    "CAD": ("CA$|C$", "CAD", "Canadian dollars|Canadian dollar", "cents"),
}
NUMBER_WORDS = (
    *("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"),
    *("eleven", "twelve", "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen"),
    "nineteen",
)
TENS_WORDS = (
    *("zero", "ten", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"),
)
ORDINAL_WORDS = {
    "one": "first", "two": "second", "three": "third", "five": "fifth", "eight": "eighth",
    "nine": "ninth", "twelve": "twelfth",
}  # fmt: skip
TYPO_WORD = re.compile(r"[^\W\d_]{4,}")  # shorter words are unrecognisable with a typo
END_PUNCTUATION = ("", "", "", "", "", "", "", "", "", "", ".", ".", "!", ",", "?", ";")


def paraphrase(fact: Fact, key: str) -> str:
    """A fact as a person might type it in English; the key determines the form.

    >>> paraphrase(Fact("date", (2024, 3, 5), "long"), "1"), paraphrase(Fact("time", (15, 30)), "3")
    ('5th March, 2024', 'half past three pm')
    """
    rng = HashRng(f"natural/{key}")
    end = rng.choice(END_PUNCTUATION)
    text = _paraphrase(fact, rng, key)
    return text if text.endswith(".") else text + end


def typical_fact(fact: Fact, key: str) -> Fact:
    """The fact with typical values: round times in half of the cases, some larger numbers.

    The result is in the same split.

    >>> typical_fact(Fact("time", (15, 32)), "0")
    Fact(kind='time', value=(15, 15), style='')
    """
    if fact.kind in COMPOSITE_KINDS:
        parts = (typical_fact(part, f"{key}/{n}") for n, part in enumerate(fact.value))
        return fact._replace(value=tuple(parts))
    rng = HashRng(f"usual/{key}")
    if fact.kind == "time":
        hour = 12 * rng(2) if rng(16) == 0 else fact.value[0]
        value = hour, rng.choice((0, 0, 0, 15, 30, 45, 5 * rng(12)))
        keep = rng(2)
    else:
        value, keep = _larger(fact, rng), rng(10)
    near = fact._replace(value=value)
    return near if not keep and fact_split(near) == fact_split(fact) else fact


def _larger(fact: Fact, rng: HashRng) -> tuple[Any, ...]:
    """The value with a number one digit longer than `draw_fact` gives, often a round one."""
    number = (1000 + rng(9000)) if rng(2) else 100 * (10 + rng(90))
    match fact.kind, fact.value:
        case "unit", (_, 0, unit):
            return number, 0, unit
        case "duration", ((_, span),):
            return ((number, span),)
        case "money", (amount, currency):
            return 1000 * number + amount % 100, currency
    return fact.value


def add_typo(text: str, key: str) -> str:
    """A typo in one word: a letter dropped, doubled, replaced or swapped.

    >>> add_typo("5 kilometres", "0"), add_typo("3:05 pm", "0")
    ('5 kiloometres', '3:05 pm')
    """
    spans = [match.span() for match in TYPO_WORD.finditer(text)]
    if not spans:
        return text
    rng = HashRng(f"typo/{key}")
    first, last = rng.choice(spans)
    at = first + rng(last - first - 1)
    a, b = text[at], text[at + 1]
    typo = rng.choice((a, a + b + b, b + a, a + "abcdefghijklmnopqrstuvwxyz"[rng(26)]))
    return text[:at] + typo + text[at + 2 :]


def _paraphrase(fact: Fact, rng: HashRng, key: str) -> str:
    if fact.kind == "list":
        # the items of a list mostly have the same form
        alike, parts = rng(4) > 0, list[str]()
        for n, part in enumerate(fact.value):
            part_rng = HashRng(f"part/{key}" if alike else f"part{n}/{key}")
            parts.append(_paraphrase(part, part_rng, key))
        word = "or" if fact.style == "or" else rng.choice(("and", "and", "and", "&"))
        oxford = "," if len(parts) > 2 and rng(2) else ""
        return f"{', '.join(parts[:-1])}{oxford} {word} {parts[-1]}"
    if fact.kind == "moment":
        day, hour = fact.value
        return rng.choice(DATETIME_FORMS).format(d=_date(day, rng), t=_time(hour.value, rng))
    if fact.kind == "date":
        return _date(fact, rng)
    if fact.kind == "time":
        return _time(fact.value, rng)
    if fact.kind == "duration":
        return _duration(fact.value, rng)
    if fact.kind == "unit":
        number, places, unit = fact.value
        return _measured(number, places, UNIT_NAMES[unit], rng)
    return _money(fact, rng)


def spell_number(number: int, rng: HashRng | None = None) -> str:
    """Number words of 0 to 999,999."""
    if number < 20:
        return NUMBER_WORDS[number]
    if number < 100:
        tens, ones = divmod(number, 10)
        dash = " " if rng and rng(3) == 0 else "-"
        return TENS_WORDS[tens] + (f"{dash}{NUMBER_WORDS[ones]}" if ones else "")
    size, name = (1000, "thousand") if number >= 1000 else (100, "hundred")
    count, rest = divmod(number, size)
    joint = " and " if rest and rest < 100 and not (rng and rng(3) == 0) else " "
    words = "a" if count == 1 and rng and rng(3) == 0 else spell_number(count, rng)
    return f"{words} {name}" + (joint + spell_number(rest, rng) if rest else "")


def format_ordinal(number: int) -> str:
    """Ordinal in digits.

    >>> [format_ordinal(n) for n in (1, 2, 3, 4, 11, 22)]
    ['1st', '2nd', '3rd', '4th', '11th', '22nd']
    """
    last = 0 if number // 10 == 1 else number % 10
    return f"{number}{ {1: 'st', 2: 'nd', 3: 'rd'}.get(last, 'th') }"


def spell_ordinal(number: int) -> str:
    """Ordinal in words.

    >>> spell_ordinal(5), spell_ordinal(21), spell_ordinal(30)
    ('fifth', 'twenty-first', 'thirtieth')
    """
    before, dash, last = spell_number(number).rpartition("-")
    last = ORDINAL_WORDS.get(last) or (last[:-1] + "ieth" if last.endswith("y") else last + "th")
    return before + dash + last


def _named(table: str, index: int, rng: HashRng) -> str:
    """Name of a month or weekday, full or abbreviated."""
    forms = table.split("|")[index].split()
    return forms[0] if rng(2) else rng.choice(forms[1:])


def _date(fact: Fact, rng: HashRng) -> str:
    value = fact.value
    year, month, day = (*value, 1)[:3]
    forms = MONTH_YEAR_FORMS if len(value) == 2 else DATE_FORMS if year else DAY_FORMS
    if len(value) == 3 and year and (day > 12 or day == month) and rng(8) == 0:
        forms = SLASHED_DATE_FORMS  # only where the order of day and month is unambiguous
    text = rng.choice(forms).format(
        d=day, dd=f"{day:02}", o=format_ordinal(day), w=spell_ordinal(day), m=month,
        mm=f"{month:02}", M=_named(MONTH_NAMES, month - 1, rng), y=year, yy=f"{year % 100:02}",
    )  # fmt: skip
    if fact.style != "full":
        return text
    name = _named(WEEKDAY_NAMES, date(year, month, day).weekday(), rng)
    return f"{name}{rng.choice((', ', ' '))}{text}"


def _half(hour: int, rng: HashRng) -> str:
    """am or pm, with or without a leading space."""
    letter = "ap"[hour >= 12]
    short = rng.choice((f"{letter}m", f"{letter}m", f"{letter.upper()}M", f"{letter}.m."))
    return rng.choice(("", " ")) + short


def _part(hour: int) -> str:
    if hour < 12:
        return " in the morning" if hour > 3 else " at night"
    return " in the afternoon" if hour < 18 else " in the evening" if hour < 22 else " at night"


def _time(value: tuple[int, ...], rng: HashRng) -> str:
    hour, minute = value
    small, form = hour % 12 or 12, rng(8)
    if minute == 0 and hour % 12 == 0 and rng(2):
        return rng.choice(("noon", "12 noon", "midday") if hour else ("midnight", "12 midnight"))
    if form < 3:
        return rng.choice(CLOCK_FORMS).format(h=hour, hh=f"{hour:02}", mm=f"{minute:02}")
    if form < 6 and minute == 0 and rng(3):
        return f"{rng.choice((small, small, spell_number(small)))}{_half(hour, rng)}"
    if form < 6:
        return f"{small}{rng.choice((':', ':', '.'))}{minute:02}{_half(hour, rng)}"
    return _spoken(hour, minute, rng)


def _spoken(hour: int, minute: int, rng: HashRng) -> str:
    """A spoken time: half past three, quarter to four, three o'clock, three forty."""
    after = minute > 30 and minute % 5 == 0
    shown = (hour + after) % 12 or 12
    name = str(shown) if rng(3) == 0 else spell_number(shown)
    # without am or pm it must be right on the 24-hour clock
    plain = hour >= 1 and hour + after == shown
    half = rng.choice(("" if plain else " pm" if hour >= 12 else " am", _half(hour, rng), None))
    half = _part(hour) if half is None else half if half.startswith(" ") or not half else f" {half}"
    if minute == 0:
        return name + ("" if len(half) > 5 and rng(2) else " o'clock") + half
    if minute % 5 or rng(5) == 0:
        zero = "oh " if minute < 10 else ""
        return f"{spell_number(hour % 12 or 12)} {zero}{spell_number(minute, rng)}{half}"
    apart = 60 - minute if after else minute
    how = {15: rng.choice(("quarter", "a quarter")), 30: "half"}.get(apart)
    how = how or rng.choice((spell_number(apart), str(apart)))
    minutes = " minutes" if apart % 15 and rng(6) == 0 else ""
    return f"{how}{minutes} {'to' if after else 'past'} {name}{half}"


def _count(number: int, rng: HashRng) -> str:
    """Digits of an integer, with or without thousands separators."""
    if number < 1000:
        return str(number)
    return f"{number:,}".replace(",", rng.choice((",", ",", "", "", " ")))


def _measured(number: int, places: int, names: tuple[str, str], rng: HashRng) -> str:
    symbols, long = names[0].split(), names[1].split("|")
    whole, rest = divmod(number, 10**places)
    decimals = f".{rest}" if places else ""
    if rng(2):
        return _count(whole, rng) + decimals + rng.choice(("", " ")) + rng.choice(symbols)
    name = long[0] if rng(2) else rng.choice(long)
    if rng(2):
        return f"{_count(whole, rng)}{decimals} {name}"
    if places:
        return f"{spell_number(whole, rng)} point {spell_number(rest)} {name}"
    if whole == 1:
        single = rng.choice([name for name in long if not name.endswith("s")] or long)
        article = "an" if single[0] in "aeiou" or single.startswith(("hour", "hr")) else "a"
        return f"{rng.choice((article, 'one'))} {single}"
    if whole in (2, 12) and rng(4) == 0:
        return f"{'a couple of' if whole == 2 else 'a dozen'} {name}"
    return f"{spell_number(whole, rng)} {name}"


def _duration(parts: tuple[tuple[int, str], ...], rng: HashRng) -> str:
    if len(parts) == 1:
        ((number, span),) = parts
        if (number, span) == (30, "duration-minute") and rng(2):
            return rng.choice(("half an hour", "half an hour", "a half hour", "half hour"))
        if (number, span) == (2, "duration-week") and rng(2):
            return rng.choice(("a fortnight", "one fortnight"))
        return _measured(number, 0, DURATION_NAMES[span], rng)
    (large, span), (small, under) = parts
    name = span.removeprefix("duration-")
    if (name, small) in HALF_UNITS and rng(2):
        if large == 1:
            return f"{rng.choice(('an' if name == 'hour' else 'a', 'one'))} {name} and a half"
        return f"{rng.choice((spell_number(large, rng), str(large)))} and a half {name}s"
    key = f"{rng(1 << 30)}"  # both parts have the same form
    texts = [_measured(number, 0, DURATION_NAMES[unit], HashRng(key)) for number, unit in parts]
    joints = (" and ", " and ", " ", ", ", ", and ", *([""] if texts[0].isalnum() else []))
    return rng.choice(joints).join(texts)


def _money(fact: Fact, rng: HashRng) -> str:
    amount, currency = fact.value
    signs, codes, names, hundredths = (text.split("|") for text in CURRENCY_NAMES[currency])
    whole, cents = divmod(amount, 100)
    text = _count(whole, rng)
    if currency != "JPY" and (cents or rng(3) == 0):
        text += f".{cents:02}"
    if fact.style == "standard":
        sign = rng.choice(signs) if rng(3) else rng.choice(codes)
        letters = sign.isalpha() and rng(4) > 0
        forms = ("{s} {t}", "{t} {s}") if letters else ("{s}{t}", "{s}{t}", "{t}{s}", "{t} {s}")
        return rng.choice(forms).format(s=sign, t=text)
    name = names[0] if rng(2) else rng.choice(names)
    if rng(2):
        return f"{text} {name}"
    if not cents or currency == "JPY":
        singular = next((x for x in names if not x.endswith("s")), name)
        if whole == 1:
            return f"{rng.choice(('a', 'one'))} {singular}"
        return f"{spell_number(whole, rng)} {name}"
    digits = rng(2)
    large, small = (str(x) if digits else spell_number(x, rng) for x in (whole, cents))
    if rng(3) == 0:
        return f"{large} {name} {small}"
    return f"{large} {name} and {small} {rng.choice(hundredths)}"
