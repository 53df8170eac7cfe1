"""The phrases task: dates, units, prices and lists in many languages, generated from CLDR."""
