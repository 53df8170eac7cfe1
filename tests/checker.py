"""The type checker behind the shape annotations in tests; an int is a fine float."""

from beartype import BeartypeConf, beartype

check = beartype(conf=BeartypeConf(is_pep484_tower=True))
